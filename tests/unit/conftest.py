"""What the unit tests share: no example of a property has a deadline, since other load may hold it up."""

from hypothesis import settings

settings.register_profile("no_deadline", settings(), deadline=None)
settings.load_profile("no_deadline")
