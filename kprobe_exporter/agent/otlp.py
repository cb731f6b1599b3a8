"""OpenTelemetry in the agent: which events of which probe are exported, and the threads that send them."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Literal, NamedTuple

from kprobe_exporter.aggregate.attached_layout import attribute_readers
from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.aggregate.recipes import getter, passes
from kprobe_exporter.config.model import Export, LinesExport, Otlp
from kprobe_exporter.export.lines import Destination, LineWriter
from kprobe_exporter.export.otlp.build import SCOPE, Builder, Description
from kprobe_exporter.export.otlp.channel import Channel, Sender, SignalCounts, short_turns
from kprobe_exporter.export.otlp.clock import WallClock
from kprobe_exporter.export.otlp.encode import Attribute, Requests, log_record
from kprobe_exporter.export.otlp.metrics import Conversion, Pusher, pack, size
from kprobe_exporter.export.otlp.resource import resource
from kprobe_exporter.export.otlp.select import Identity, Selector
from kprobe_exporter.export.otlp.settings import OtlpSettings
from kprobe_exporter.export.otlp.transport import connect
from kprobe_exporter.grammar.formula import DURATION
from kprobe_exporter.grammar.target import Kind
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.aggregation import RecordChoice, Where
from kprobe_exporter.model.records import LAYOUT_ID, TIME, Batch, Emission, Record, is_nested
from kprobe_exporter.model.snapshot import Exemplar, Family, Snapshot, exemplar_of_span
from kprobe_exporter.model.specs import LabelSpec
from kprobe_exporter.plan.metric import export_condition
from kprobe_exporter.probing.attach import Attached

log = logging.getLogger(__name__)

Signal = Literal["log", "span", "line"]

NAMES: Mapping[Signal, Literal["logs", "traces"]] = {"log": "logs", "span": "traces"}
"""OpenTelemetry's names of the signals."""

LINES = "lines"
"""The same for events that are written as lines, which are none of its signals."""

FLUSH = 5.0
"""Seconds that sending the remaining items may take at the end, for all signals together."""

EMISSION_BYTES, VALUE_BYTES, ATTRIBUTES_BYTES = 320, 41, 1024
"""Bytes of memory: an Emission with its ids, an empty record and an empty stack; a value of the record or a
frame of the stack, with its pointer; the attributes of the container and the pod."""

RECENT = 10.0
"""Seconds for which the slowest call of a probe is kept, for a record of what happened then."""

MOST_REMOVED = 256
"""Probes that are no longer exported and still known, for items that wait to be sent."""

HELP = {
    "exported": "Items that the OTLP collector accepted.",
    "dropped": "Items that were not sent: over a limit, with the queue full, or at shutdown.",
    "failed": "Items that were sent and that the collector refused, or did not accept within `otlp.retry`.",
}


class _Slowest(NamedTuple):
    """An exported call of a probe, none slower since; ``then`` is when, in seconds of monotonic time."""

    took: int
    trace: int
    span: int
    then: float


class OtlpExport:
    """Selects, builds and sends. Raises StartError for settings that can never work.

    The reader's thread alone calls ``consume`` and, after each round, ``tick``; once it runs, also ``add``
    and ``remove``. The thread that holds the change lock calls ``open`` before: it may take a
    while. Call ``start`` once, and ``close`` after the reader has ended; it may be called twice. Any thread
    may call ``families``. A channel's thread calls ``exemplify`` for the calls that the collector took; if
    the collector rejected some of a batch, for none of it.
    """

    def __init__(
        self,
        otlp: Otlp,
        lines: LinesExport | None,
        identity: Identity | None,
        exemplify: Callable[[str, Exemplar], None],
    ) -> None:
        self._otlp, self._lines = otlp, lines
        self._settings = OtlpSettings(
            otlp.endpoint,
            otlp.protocol,
            otlp.headers,
            otlp.timeout,
            otlp.compression,
            otlp.certificate,
            otlp.client_certificate,
            otlp.client_key,
            otlp.retry,
        )
        self._exemplify = exemplify
        self._clock = WallClock()
        self._resource = resource()
        self._stack = ExitStack()
        self._descriptions: dict[int, Description] = {}  # the channels' threads look things up in it
        self._requests = Requests(self._resource, SCOPE)
        self._builder = Builder(self._descriptions, self._clock)
        self._probes: dict[int, tuple[str, int | None]] = {}
        self._removed: dict[int, None] = {}  # by layout_id, the oldest first
        self._watched: Collection[str] = ()
        self._slowest: dict[str, _Slowest] = {}
        self._channels: dict[Signal, Channel[Emission | bytes]] = {}
        self._limited: Counter[Signal] = Counter()
        self._pusher: Pusher | None = None
        self._left = FLUSH
        self._selector = Selector(self._put, self._drop, otlp.max_per_second, identity=identity)

    def choice(self, attached: Attached, export: Export) -> RecordChoice:
        """Return how the source can choose what is exported."""
        only = _where(attached, export)
        join = attached.joined
        return RecordChoice(
            export.signal,
            only,
            export.sample,
            export.max_per_second,
            self._otlp.max_per_second,
            nested=join is not None and is_nested(join.by, join.key),
            system_call=attached.spec.kind == Kind.SYSCALL,
        )

    def add(
        self,
        attached: Attached,
        export: Export,
        pairing: Pairing,
        *,
        chosen: bool = False,
        labels: Sequence[LabelSpec] = (),
    ) -> None:
        """Export the records of an installed probe. ``pairing`` passes them on, in the stream's order.

        ``labels`` become attributes.

        ``chosen``: the source joins them, and delivers those of `choice` as ``Batch.emissions``.
        """
        layout = attached.layout
        if chosen:
            self._selector.expect(layout, export.signal)
            if attached.joined is not None:
                pairing.add(attached.joined)
        else:
            on_record = self._selector.on_record(
                layout,
                export.signal,
                export.sample,
                export.max_per_second,
                _passes(attached, export),
                attached.joined,
            )
            if attached.joined is not None:
                called = attached.spec.kind == Kind.SYSCALL
                pairing.add(attached.joined, ended=on_record, system_call=called)
            else:
                pairing.watch(layout, on_record)
        self._probes[layout.layout_id] = layout.probe, layout.place("duration")
        self._descriptions[layout.layout_id] = Description(
            layout,
            attached.spec.kind,
            name_of,
            export.attributes,
            getter(layout, "return") if layout.returns and layout.place("return") else None,
            attribute_readers(labels, layout),
        )
        self._removed.pop(layout.layout_id, None)
        self.open(export.signal)

    def remove(self, attached: Attached, pairing: Pairing) -> None:
        """Stop exporting it. Items of it may still wait to be sent."""
        layout, join = attached.layout, attached.joined
        if join is not None:
            pairing.remove(join)
        pairing.unwatch(layout)
        self._selector.forget(layout, join)
        self._removed[layout.layout_id] = None
        for layout_id in list(self._removed)[:-MOST_REMOVED]:
            del self._removed[layout_id], self._probes[layout_id], self._descriptions[layout_id]

    def open(self, signal: Signal) -> None:
        """Start the channel of this signal, if there is none yet. Raises StartError."""
        if signal in self._channels:
            return
        sender: Sender
        if signal == "line":
            assert self._lines is not None
            name, build, sender = LINES, self._builder.line, LineWriter(Destination(*self._lines))
        else:
            name = NAMES[signal]
            build = self._builder.span if signal == "span" else self._builder.log
            sender = connect(NAMES[signal], self._settings, self._requests)

        def encoded(item: Emission | bytes) -> bytes:
            return item if isinstance(item, bytes) else build(item)

        channel = Channel(name, encoded, sender, self._otlp.queue, arrived=self._arrived, memory=memory)
        channel.start()
        self._channels[signal] = channel

    def start(self, snapshot: Callable[[], Snapshot], started: int) -> None:
        """Start pushing metrics; ``started`` is when counting began, in nanoseconds since the epoch."""
        self._stack.enter_context(short_turns())
        if self._otlp.metrics is not None:
            sender = connect("metrics", self._settings, partial(pack, self._resource, SCOPE), size)
            self._pusher = Pusher(snapshot, sender, self._otlp.metrics, Conversion(started))
            self._pusher.start()

    def tick(self) -> None:
        """Keep the clock fresh, and export what has waited long enough."""
        self._clock.refresh()
        self._selector.tick()

    def consume(self, batch: Batch) -> None:
        """Export what was selected from a batch; call it after the batch's other consumers."""
        self._selector.consume(batch)

    def stop_pushing(self) -> None:
        """Push the metrics once more. The threads that the snapshot needs must still run."""
        if self._pusher is not None:
            begun = time.monotonic()
            self._pusher.close(FLUSH / 2)
            self._left = FLUSH - (time.monotonic() - begun)

    def close(self) -> None:
        """Send the remaining items, in bounded time, and log how many were lost."""
        self._selector.flush()
        # In parallel: a collector that hangs must cost the time only once.
        with ThreadPoolExecutor() as pool:
            lost = list(pool.map(lambda channel: channel.close(self._left), self._channels.values()))
        named = [NAMES.get(signal, LINES) for signal in self._channels]
        losses = [f"{count} {name}" for name, count in zip(named, lost, strict=True) if count]
        if losses:
            text = "%s are lost: the collector did not accept them before the agent stopped"
            log.warning(text, " and ".join(losses))
        self._stack.close()

    def families(self) -> tuple[Family, ...]:
        """Return how many items were exported, dropped or failed, by signal."""
        counts: dict[str, SignalCounts] = {name: self._counts(signal) for signal, name in NAMES.items()}
        if self._lines is not None:
            counts[LINES] = self._counts("line")
        if self._pusher is not None:
            counts["metrics"] = self._pusher.counts()
        return tuple(_family(what, counts) for what in HELP)

    def watch(self, probes: Collection[str]) -> None:
        """Keep the slowest calls of these probes from now on, for ``announce``; of others none."""
        self._watched = probes
        self._slowest = {probe: one for probe, one in self._slowest.items() if probe in probes}

    def announce(
        self, event: str, body: str, attributes: Mapping[str, Attribute], probes: Collection[str]
    ) -> None:
        """Send a log record of the agent's own, once ``open`` has been called for log records.

        It belongs to the slowest call of these probes, which are watched, that was exported in the last
        RECENT seconds.
        """
        now, since = time.time_ns(), time.monotonic() - RECENT
        calls = [one for probe in probes if (one := self._slowest.get(probe)) and one.then >= since]
        _, trace, span, _ = max(calls, default=_Slowest(0, 0, 0, since))
        self._channels["log"].put(log_record(now, now, event, body, attributes, trace, span, error=False))

    def _put(self, signal: Signal, emission: Emission) -> bool:
        taken = self._channels[signal].put(emission)
        if taken and emission.span and self._watched:
            self._note(emission)
        return taken

    def _note(self, emission: Emission) -> None:
        """Keep a call of a watched probe, unless a recent one was slower."""
        probe, place = self._probes.get(emission.record[LAYOUT_ID], ("", None))
        if probe in self._watched and place is not None:
            took, now = emission.record[place], time.monotonic()
            known = self._slowest.get(probe)
            if known is None or took >= known.took or now - known.then > RECENT:
                self._slowest[probe] = _Slowest(took, emission.trace, emission.span, now)

    def _arrived(self, items: Sequence[Emission | bytes]) -> None:
        """Make the spans among them exemplars: the collector took them, so their traces can be found."""
        for record, trace, span, *_ in (item for item in items if not isinstance(item, bytes)):
            probe, place = self._probes.get(record[LAYOUT_ID], ("", None))
            if span and place is not None:
                took = record[place]
                end = self._clock.unix_ns(record[TIME]) + took
                self._exemplify(probe, exemplar_of_span(trace, span, took / 1e9, end / 1e9))

    def _drop(self, signal: Signal, number: int) -> None:
        self._limited[signal] += number

    def _counts(self, signal: Signal) -> SignalCounts:
        channel = self._channels.get(signal)
        return (channel.counts() if channel else SignalCounts()).plus(dropped=self._limited[signal])


def memory(emission: Emission | bytes) -> int:
    """Return about how many bytes of memory an emission takes, in 1 µs: sys.getsizeof() would take 6 µs.

    Names of functions are counted as if no other emission had them. A test compares this with tracemalloc.
    """
    if isinstance(emission, bytes):
        return len(emission)
    record, stack = emission.record, emission.stack
    size = EMISSION_BYTES + VALUE_BYTES * (len(record) + len(stack)) + sum(map(len, stack))
    for value in record:
        if type(value) is bytes:
            size += len(value)
    return size if emission.attributes is None else size + ATTRIBUTES_BYTES


def _where(attached: Attached, export: Export) -> Where | None:
    return export_condition(export, (DURATION, *attached.layout.steps))


def _passes(attached: Attached, export: Export) -> Callable[[Record], bool] | None:
    """Return the test of the filters that the agent evaluates, the probe's and the export's; None if none."""
    conditions = (attached.residual_filter, _where(attached, export))
    tests = [passes(attached.layout, condition) for condition in conditions if condition is not None]
    return (lambda record: all(test(record) for test in tests)) if tests else None


def _family(what: str, counts: Mapping[str, SignalCounts]) -> Family:
    samples: dict[tuple[str, ...], float] = {(name,): getattr(count, what) for name, count in counts.items()}
    return Family(f"kprobe_exporter_otlp_{what}_total", "counter", HELP[what], ("signal",), samples)
