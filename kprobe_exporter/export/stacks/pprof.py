"""A profile in the format of pprof: gzipped protobuf, as Pyroscope, Parca and ``go tool pprof`` read it.

The numbers of fields are those of proto/profile.proto of github.com/google/pprof.
"""

import gzip
from collections.abc import Iterator

from kprobe_exporter.errors import name_text
from kprobe_exporter.model.stacks import LOST, Profile, Stack, Weight
from kprobe_exporter.util.protobuf import field, varint

CONTENT_TYPE = "application/octet-stream"

SAMPLE_TYPE, SAMPLE, LOCATION, FUNCTION, STRING = 1, 2, 4, 5, 6
TIME, DURATION, PERIOD_TYPE, PERIOD, COMMENT, DEFAULT_TYPE = 9, 10, 11, 12, 13, 14

HITS = ("hits", "count")
"""The first sample type, and the type of the period: each hit is a sample."""

NANOSECONDS = {"duration": "nanoseconds"}
"""The units of fields by which stacks are weighed; other fields are just counted."""


def pprof(profile: Profile) -> bytes:
    """Return the profile, with the sample types ``hits`` and, if it is weighed, the field's name.

    Lost hits are a sample with a frame of their own, and a comment, which only ``go tool pprof`` shows.
    """
    return gzip.compress(b"".join(_message(profile)), compresslevel=3, mtime=0)


def _message(profile: Profile) -> Iterator[bytes]:
    strings: dict[str, int] = {"": 0}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    def value_type(name: str, unit: str) -> bytes:
        return _number(1, text(name)) + _number(2, text(unit))

    types = [HITS]
    if profile.weigh is not None:
        types.append((profile.weigh, NANOSECONDS.get(profile.weigh, "count")))
    for name, unit in types:
        yield field(SAMPLE_TYPE, value_type(name, unit))
    functions: dict[bytes, int] = {}
    lost: dict[Stack, Weight] = {(LOST,): Weight(profile.lost, 0)} if profile.lost else {}
    for stack, weight in {**profile.stacks, **lost}.items():
        places = b"".join(varint(functions.setdefault(frame, len(functions) + 1)) for frame in stack)
        values = b"".join(varint(value % (1 << 64)) for value in weight[: len(types)])
        yield field(SAMPLE, field(1, places) + field(2, values))
    for frame, number in functions.items():
        known = text(name_text(frame))
        yield field(LOCATION, _number(1, number) + field(4, _number(1, number)))
        yield field(FUNCTION, _number(1, number) + _number(2, known) + _number(3, known))
    if profile.lost:
        yield _number(COMMENT, text(f"{profile.lost} hits are missing, whose stacks were not kept or lost"))
    yield _number(TIME, profile.since) + _number(DURATION, max(0, profile.until - profile.since))
    yield field(PERIOD_TYPE, value_type(*HITS)) + _number(PERIOD, 1)
    yield _number(DEFAULT_TYPE, text(types[-1][0]))
    for value in strings:  # all are known by now
        yield field(STRING, value.encode("utf-8", "backslashreplace"))


def _number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)
