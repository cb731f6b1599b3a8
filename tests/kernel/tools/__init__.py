"""Terminal tools under loads that record what they did, by subject."""
