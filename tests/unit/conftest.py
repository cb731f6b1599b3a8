"""Settings of all unit tests: hypothesis examples have no deadline, since other load may delay them."""

from hypothesis import settings

settings.register_profile("no_deadline", settings(), deadline=None)
settings.load_profile("no_deadline")
