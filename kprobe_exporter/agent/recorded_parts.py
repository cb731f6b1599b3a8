"""The events of a probe in a recording: their filters, and the event that the kernel makes of a call or pair.

A probe with ``aggregate: kernel`` has no filter on its events, because its hist triggers have their own
conditions. If the kernel joins the events, the joined event has all that a recording needs: its time is
that of the end, and it has the duration.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kprobe_exporter.model.hist import HistKey
from kprobe_exporter.model.records import Layout, is_nested
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan import JoinedSpec
from kprobe_exporter.probing.attach import Attached
from kprobe_exporter.tracefs.kept_settings import SharedFilters
from kprobe_exporter.tracefs.probes import Installed


def recorded_parts(attached: Attached) -> Sequence[Installed]:
    """Return the events that a recording has of a probe: all, or the joined one alone."""
    return attached.parts if attached.pair is None else attached.parts[-1:]


def recorded_filter(spec: ProbeSpec) -> str | None:
    """Return the filter of an event in a recording, None for all events."""
    if spec.plan == "kernel" and spec.hist_event is not None:
        return spec.hist_event.condition
    return spec.kernel_filter


def recorded_events(
    tracepoints: Iterable[str], probes: Iterable[Attached]
) -> tuple[dict[str, str], dict[str, ProbeSpec]]:
    """Return the events of a recording, ``SYSTEM/EVENT`` with filters, and the eprobes among them."""
    parts = [(f"{part.system}/{part.event}", part.spec) for each in probes for part in recorded_parts(each)]
    events: list[tuple[str, str | None]] = [(event, None) for event in tracepoints]
    events += [(event, recorded_filter(spec)) for event, spec in parts]
    filters = SharedFilters()
    for event, text in events:
        filters.add(event, text)
    eprobes = {event: spec for event, spec in parts if spec.layout.form == "eprobe"}
    return {event: filters.text(event) for event, _ in events}, eprobes


def joined_by_kernel(attached: Attached) -> Layout | None:
    """Return the layout of the event that the kernel makes of two, None if it does not."""
    if attached.pair is None:
        return None
    args = [
        Arg(key.field, "int" if key.bits else "str", field="" if key.name == key.field else key.name)
        for key in _keys(attached)
    ]
    return replace(attached.layout, args=tuple(args))


def has_nested_calls(attached: Attached) -> bool:
    """Return whether the probe's calls lie in each other on their thread."""
    spec = attached.spec
    return isinstance(spec, JoinedSpec) and is_nested(spec.by, spec.key)


def with_names(text: bytes, attached: Attached) -> bytes:
    """Return the format of the joined event with the names of the probe and of its fields."""
    first, rest = text[: (end := text.find(b"\n") + 1)], text[end:]
    for key in _keys(attached):
        rest = re.sub(rb"\b%s\b" % key.name.encode(), key.field.encode(), rest)
    return (f"name: {attached.spec.probe}\n".encode() if first else b"") + rest


def _keys(attached: Attached) -> Sequence[HistKey]:
    event = attached.parts[-1].spec.hist_event
    return () if event is None else event.keys
