"""What reads somebody else's bytes, fed with bytes that nobody meant."""
