"""What the configuration language has and this version has not yet: a table that shrinks."""

from collections.abc import Mapping

# By the place in the configuration.
LATER: Mapping[str, frozenset[str]] = {
    "global": frozenset({"limit"}),
    "probes": frozenset({"limit"}),
}


def later(place: str, name: object) -> str | None:
    """The sentence that refuses ``name`` in this place, None if it is not known to come."""
    if name in LATER.get(place, ()):
        return f"{name!r} is not in this version yet, a later one brings it: leave it out until then"
    return None
