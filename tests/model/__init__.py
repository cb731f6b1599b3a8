"""What the event engine does, in plain Python: short, slow, and the oracle of the tests."""
