"""The events of a probe that a load's calls give, and what their conditions and labels make of them."""

import errno
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.kernel.differential.load import Firing
from tests.kernel.differential.points import CALLS, ENTRIES, POINTS, RETURNS
from tests.kernel.differential.probes import Comparison, Condition, Label, Probe, Value
from tests.kernel.differential.types import read_as

MAX_ERRNO = 4095
LABEL_BYTES = 128
UNKNOWN = "unknown"

ERRORS = {**errno.errorcode} | {
    number: name
    for first, names in {
        512: "ERESTARTSYS ERESTARTNOINTR ERESTARTNOHAND ENOIOCTLCMD ERESTART_RESTARTBLOCK EPROBE_DEFER"
        " EOPENSTALE ENOPARAM",
        521: "EBADHANDLE ENOTSYNC EBADCOOKIE ENOTSUPP ETOOSMALL ESERVERFAULT EBADTYPE EJUKEBOX EIOCBQUEUED"
        " ERECALLCONFLICT ENOGRACE",
    }.items()
    for number, name in enumerate(names.split(), first)
}
"""Error numbers, also those that no program should see (include/linux/errno.h)."""


@dataclass(frozen=True)
class Event:
    """One event or joined call: its fields, and the bounds of its moment and of its duration."""

    values: Mapping[str, Value]
    begin: int
    end: int
    least: int = 0
    most: int = 0


@dataclass
class Joining:
    """The calls and pairs of one probe: those that were joined, and first halves that were told as unpaired.

    ``waiting`` are beginnings of a pair whose end did not come, and may still do so.
    """

    events: list[Event]
    unpaired: int
    waiting: int


def hits(probe: Probe, firings: Iterable[Firing]) -> int:
    """The hits of a probe: entries, also where its events are returns; of a pair, the beginnings."""
    if probe.kind == "exit" or (probe.kind in RETURNS and probe.kind != "uretprobe"):
        return sum(firing.point == probe.point and firing.returns for firing in firings)
    return sum(firing.point == probe.point and firing.enters for firing in firings)


def single_events(probe: Probe, firings: Iterable[Firing]) -> Iterator[Event]:
    """The events of a probe that is no call and no pair, before its filter."""
    for firing in firings:
        if firing.point == probe.point and (firing.enters if probe.kind in ENTRIES else firing.returns):
            yield Event(_values(probe, firing), firing.begin, firing.end)


def joined_calls(probe: Probe, firings: Iterable[Firing]) -> Joining:
    """The calls of a probe, before its filter.

    An entry without a return is told as unpaired when its thread enters the function again, or ends. The
    return of a forked child, which never entered, is none.
    """
    result = Joining([], 0, 0)
    left: dict[int, int] = {}
    for firing in firings:
        if firing.point != probe.point:
            continue
        if firing.enters:
            result.unpaired += left.pop(firing.tid, 0)
        if firing.role == "call":
            took = firing.end - firing.begin
            values = _values(probe, firing)
            result.events.append(Event(values, firing.begin, firing.end, firing.least, took))
        elif firing.role == "entry":
            left[firing.tid] = 1
    result.unpaired += sum(left.values())
    return result


def pairs(probe: Probe, firings: Iterable[Firing]) -> Joining:
    """The pairs of a probe: an end and the last beginning of its key, if no end came in between."""
    result = Joining([], 0, 0)
    opened: dict[tuple[int, ...], Firing] = {}
    for firing in firings:
        key = (firing.a, firing.tid) if "tid" in probe.keys else (firing.a,)
        if firing.point == "pair_begin":
            result.unpaired += key in opened
            opened[key] = firing
        elif firing.point == "pair_end" and key in opened:
            first = opened.pop(key)
            values = {**_own(first), "key": firing.a, "value": first.b, "other": firing.b}
            least, most = max(0, firing.begin - first.end), firing.end - first.begin
            result.events.append(Event(values, first.begin, firing.end, least, most))
    if "tid" in probe.keys:
        result.unpaired += len(opened)  # no thread outlives its load
    else:
        result.waiting = len(opened)
    return result


def _own(firing: Firing) -> dict[str, Value]:
    return {"tid": firing.tid, "cpu": firing.cpu, "comm": firing.comm}


def _values(probe: Probe, firing: Firing) -> dict[str, Value]:
    values = {**_own(firing), "symbol": _symbol(probe)}
    parameters = {one.name: one for one in POINTS[probe.point].parameters}
    for fetch in probe.fetch:
        value: Value = getattr(firing, parameters[fetch.name].attribute)
        values[fetch.name] = read_as(value, fetch.type) if isinstance(value, int) else value
    if probe.kind in RETURNS | CALLS and probe.has_return:
        values["return"] = read_as(firing.result, probe.returns)
    return values


def _symbol(probe: Probe) -> bytes:
    of_kernel = probe.kind in ("kprobe", "kretprobe", "call", "fentry", "fexit")
    return (f"sys_{probe.point}" if of_kernel else probe.point).encode()


def meets(condition: Condition | None, values: Mapping[str, Value]) -> bool:
    """Whether an event meets a filter or ``where``."""
    if condition is None:
        return True
    results = (_compares(one, values[one.field]) for one in condition.comparisons)
    return all(results) if condition.every else any(results)


def _compares(comparison: Comparison, value: Value) -> bool:
    constant = comparison.constant
    if isinstance(constant, str):
        assert isinstance(value, bytes)
        if comparison.operator == "~":
            return fnmatchcase(value.decode("latin-1"), constant)
        return (value == constant.encode()) == (comparison.operator == "==")
    assert isinstance(value, int)
    results = {
        "==": value == constant,
        "!=": value != constant,
        "<": value < constant,
        "<=": value <= constant,
        ">": value > constant,
        ">=": value >= constant,
        "&": value & constant != 0,
    }
    return results[comparison.operator]


def label_text(label: Label, values: Mapping[str, Value]) -> str:
    """The text of a label of an event."""
    value = values[label.field]
    if label.decode == "errno":
        assert isinstance(value, int)
        return errno_name(value)
    if label.decode == "hex":
        assert isinstance(value, int)
        return hex(value % (1 << 64))
    if isinstance(value, int):
        return str(value)
    text = value.decode(errors="backslashreplace").replace("\n", r"\n")  # the drawn names' only such byte
    return text.encode()[:LABEL_BYTES].decode(errors="ignore")


def errno_name(value: int) -> str:
    """What the decoder ``errno`` makes of a return value, also of one that was read as unsigned."""
    for wrap in (0, 1 << 32, 1 << 64):
        if wrap - MAX_ERRNO <= value < wrap:
            return ERRORS.get(wrap - value, UNKNOWN)
    return "ok" if value >= 0 else UNKNOWN
