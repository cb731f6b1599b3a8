"""Reading events: a background thread, and the pure parsers of what it reads."""
