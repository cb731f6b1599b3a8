"""Events as JSON objects, with values as in the ring buffer and times in nanoseconds, or as text."""

import json
from collections.abc import Callable
from typing import TypeAlias

from kprobe_exporter.errors import name_text, one_line
from kprobe_exporter.model.records import TIME, Layout, Record
from kprobe_exporter.recording.describe import describer, text
from kprobe_exporter.trace.facts import FactsOf
from kprobe_exporter.trace.record_lines import Frames, Show, TraceClock

ShowAs: TypeAlias = Callable[[str, Layout, str, str, FactsOf | None], Show]
"""Makes the function for the records of a probe: by its name, its layout, and its target's kind and name.

The last argument returns the facts of a record's process that are shown, None if none are.
"""


def show_object(event: str, layout: Layout, kind: str, target: str, facts: FactsOf | None = None) -> Show:
    """Return the function that makes a JSON object of a record of this layout."""
    described = describer(event, layout, kind, target)

    def show(record: Record, frames: Frames) -> str:
        shown = described(record)
        if facts is not None:
            shown["facts"] = facts(record)
        if frames:
            shown["stack"] = [text(frame) for frame in frames]
        return json.dumps(shown)

    return show


def show_text(event: str, layout: Layout, kind: str, target: str, facts: FactsOf | None = None) -> Show:
    """Return the function that makes a line of text of a record of this layout, with its stack below."""
    described, clock = describer(event, layout, kind, target), TraceClock()

    def show(record: Record, frames: Frames) -> str:
        shown = described(record)
        values = [f"{name}={_word(value)}" for name, value in shown["args"].items()]
        values += [f"{name}={shown[name]}" for name in ("return", "error", "caller") if name in shown]
        steps = [(name, shown[f"{name}_ns"]) for name in layout.steps]
        values += [f"{name} after {took / 1e6:.3f} ms" for name, took in steps if took is not None]
        if "duration_ns" in shown:
            values.append(f"in {shown['duration_ns'] / 1e6:.3f} ms")
        if facts is not None:
            values += [f"{name}={_word(value)}" for name, value in facts(record).items()]
        moment = f"{clock.time(record[TIME]):%H:%M:%S.%f}"[:12]
        thread = f"{_word(shown['comm'])}-{shown['tid']}"
        stack = [f"\n        {name_text(frame)}" for frame in frames]
        return one_line(" ".join([moment, f"{event:<20}", f"{thread:<24}", *values])) + "".join(stack)

    return show


def _word(value: object) -> str:
    """Return a value as a word of a line; a text with blanks is quoted."""
    return json.dumps(value) if isinstance(value, str) and (" " in value or not value) else str(value)
