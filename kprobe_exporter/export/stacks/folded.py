"""Folded stacks: a line for each, its functions from the outermost one, joined by ``;``, and a number."""

import re
from collections.abc import Iterator

from kprobe_exporter.model.stacks import LOST, Profile

SEPARATORS = re.compile(rb"[^!-:<-~]")
"""Bytes that a frame may not contain: ``;``, white space, and all that is not printable ASCII."""


def folded(profile: Profile) -> bytes:
    """Return the stacks, the heaviest first, weighed by the profile's field or else by hits.

    flamegraph.pl, inferno and speedscope read it. The last line reports the lost hits as a frame of their
    own; weighed by a field they have no weight, and the frame's name has their number.
    """
    return b"".join(_lines(profile))


def frame_name(frame: bytes) -> bytes:
    """Return a frame with ``_`` in place of each byte that could end it."""
    return SEPARATORS.sub(b"_", frame) or b"_"


def _lines(profile: Profile) -> Iterator[bytes]:
    by_total = profile.weigh is not None
    numbers = ((weight.total if by_total else weight.hits, stack) for stack, weight in profile.stacks.items())
    for number, stack in sorted(numbers, key=lambda one: (-one[0], one[1])):
        if number:
            frames = [frame_name(frame) for frame in reversed(stack)] or [b"_"]
            yield b"%s %d\n" % (b";".join(frames), number)
    if profile.lost:
        yield b"[%d_hits_lost] 0\n" % profile.lost if by_total else b"%s %d\n" % (LOST, profile.lost)
