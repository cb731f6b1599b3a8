"""The alternatives of one probe: single events, calls, and pairs of events."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kprobe_exporter.config.fields import Fetched
from kprobe_exporter.config.model import Attach
from kprobe_exporter.config.schema import AttachModel, HalfModel, PairModel, ProbeModel
from kprobe_exporter.config.sites import (
    AGENT_NAMES,
    BUILT_IN,
    PLACES,
    Alternative,
    AlternativeBuilder,
    Alternatives,
    in_force,
    no_field,
    odd_duration,
)
from kprobe_exporter.config.wording import Path, quote
from kprobe_exporter.config.yaml_source import Report
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.evaluate import FLOAT, FieldType, wrong_comparison, wrong_time
from kprobe_exporter.grammar.fetch import check_name
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula import DURATION
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from kprobe_exporter.model.records import PREVIOUS, STACK_POINTER

THREAD_KEYS = frozenset({"tid", "pid", "cpu", "common_pid", "common_tgid", "common_cpu"})
"""Fields that every event has, so that a pair may use them as its key without fetching them."""

RETURN_OF_END = "a pair's `return` is that of its last event: fetch this one's $retval under another name"


RUNS = "tracepoint:sched:sched_switch"
WOKEN = frozenset(
    f"tracepoint:sched:{event}" for event in ("sched_waking", "sched_wakeup", "sched_wakeup_new")
)
PREEMPTED = (
    "a thread that loses its CPU although it could continue waits as well, and is not counted: begin with"
    f" {RUNS}, too, as examples/runqlat.yaml does"
)
"""The warning about a pair that measures the wait for a CPU from a wakeup alone."""


def alternatives(probe: ProbeModel, report: Report, defined: Target | None = None) -> Alternatives:
    """Return all alternatives of a well-formed probe, in order. Problems go to ``report``.

    ``defined`` is the target of the probe's definition, which is then the only alternative.
    """
    if defined:
        found = [AlternativeBuilder(probe, defined, PLACES, report).alternative()]
    elif isinstance(probe.attach, list):
        listed = enumerate(probe.attach)
        found = [_alternative(probe, entry, ("attach", index), report) for index, entry in listed]
    else:
        found = [_alternative(probe, probe.attach, ("attach",), report)] if probe.attach else []
    if found:
        _refuse_idle_keys(probe, found, report)
    times = {name for one in found for name in one.attach.through}
    for index, one in enumerate(found):
        for name in sorted(times & one.fields.keys() - one.attach.through.keys()):
            report(
                ("attach", index), f"{name!r} is a time in another alternative, and a field here: rename one"
            )
        if one.attach.target.is_pattern and len(found) > 1:  # everything that it matches is probed together
            report(("attach", index), f"{one.attach.target} is a pattern, which has no alternatives")
    return tuple(found)


def _alternative(probe: ProbeModel, entry: str | AttachModel, path: Path, report: Report) -> Alternative:
    own = AttachModel(to=entry) if isinstance(entry, str) else entry
    if own.to is not None:
        replaced, places = in_force(probe, own, path)
        found = AlternativeBuilder(replaced, parse_target(own.to), places, report).alternative()
    else:
        assert own.pair  # the model has one of the two
        found = _Pair(probe, own, own.pair, path, report).alternative()
    return found._replace(attach=replace(found.attach, help=own.help))


def _refuse_idle_keys(probe: ProbeModel, found: list[Alternative], report: Report) -> None:
    """Refuse keys that would silently have no effect.

    A call of a function that never returns may have those of its return: the plan says that it has none.
    """
    kinds = {part.target.kind for one in found for part in one.attach.single}
    if probe.maxactive and not kinds & {Kind.KRETPROBE, Kind.FEXIT, Kind.CALL}:
        report(("maxactive",), "only a kretprobe has it, and none is attached: leave it out")
    if any(one.attach.target.is_entry_alone for one in found):
        return
    if not any(one.attach.returns for one in found):
        for key in ("returns", "return_buckets"):
            if getattr(probe, key) is not None:
                report((key,), "nothing here has a return value to read: leave it out")
    if probe.duration_buckets is not None and not any(one.attach.target.is_joined for one in found):
        report(("duration_buckets",), "nothing here takes time: attach a call or a pair, or leave it out")


class _Pair:
    """Builds one pair. The probe's fetch arguments are read at its first event, as with calls."""

    def __init__(
        self, probe: ProbeModel, own: AttachModel, pair: PairModel, path: Path, report: Report
    ) -> None:
        self.own, self.pair, self.path, self.report = own, pair, path, report
        self.probe, self.places = in_force(probe, own, path)
        self.keys = dict(self._keys())

    def alternative(self) -> Alternative:
        """Check the pair and return its alternative."""
        if not isinstance(self.pair.begin, list) and _whole(self.pair.begin) == _whole(self.pair.to):
            return self._again()
        fetch = self.probe.fetch or {}
        if isinstance(written := self.pair.begin, list):
            begins = [self._early(half, ("from", index), fetch) for index, half in enumerate(written)]
        else:
            begins = [self._early(written, ("from",), fetch)]
        through = {name: self._step(name, half) for name, half in (self.pair.through or {}).items()}
        end = self._half(self.pair.to, ("to",), {}, self.probe.returns)
        if self.own.returns is not None and end.attach.returns is None:
            self.report((*self.path, "returns"), f"{end.attach.target} has no return value to read")
        self._compare_keys([*begins, *through.values(), end])
        self._compare_nulls([begin.attach for begin in begins])
        if str(end.attach.target) == RUNS and {str(begin.attach.target) for begin in begins} <= WOKEN:
            self.report.warn((*self.path, "pair", "from"), PREEMPTED)
        fields: dict[str, FieldType | None] = {**end.fields}
        for name in {name for begin in begins for name in begin.fields}:
            if all(name in begin.fields for begin in begins):
                fields[name] = _common_type([begin.fields[name] for begin in begins])
        for name in sorted((through.keys() & fields) - BUILT_IN):
            self._refuse_step(name, "is fetched already")
        fields |= dict.fromkeys((DURATION, *through), FLOAT)
        *first, last = (half.attach for half in (*begins, end))
        target = Target(Kind.PAIR, parts=tuple(one.target for one in (*first, last)))
        filter_, keys = self._filter(fields), tuple(self.keys)
        absent = frozenset().union(*(one.absent for one in (*first, last)))
        absent -= {name for one in (*first, last) for name in one.fetch}
        attach = Attach(
            target,
            {},
            filter_,
            last.returns,
            last.guessed,
            tuple(first),
            last,
            keys,
            {name: step.attach for name, step in through.items()},
            absent=absent,
        )
        return Alternative(attach, fields)

    def _again(self) -> Alternative:
        """Build a pair of an event and the next one of it, which is attached to once."""
        if self.pair.through is not None:
            self.report((*self.path, "pair", "through"), "there is nothing between an event and its next one")
        one = self._half(self.pair.to, ("to",), self.probe.fetch or {}, self.probe.returns)
        names = [name for name in ("return", *one.attach.fetch) if name in one.fields]
        fields = {**one.fields, **{f"{PREVIOUS}{name}": one.fields[name] for name in names}, DURATION: FLOAT}
        for name in sorted(one.attach.fetch.keys() & {f"{PREVIOUS}{name}" for name in names}):
            why = f"{name!r} is the field of the event before this one: choose another name"
            self.report((*self.places["fetch"], name), why, at_key=True)
        target = Target(Kind.PAIR, parts=(one.attach.target, one.attach.target))
        attach = Attach(
            target,
            {},
            self._filter(fields),
            one.attach.returns,
            one.attach.guessed,
            (one.attach,),
            one.attach,
            tuple(self.keys),
            absent=one.attach.absent,
        )
        return Alternative(attach, fields)

    def _keys(self) -> Iterator[tuple[str, Path]]:
        """Yield the valid fields of the key, each with its path, and refuse the others."""
        key, path = self.pair.key, (*self.path, "pair", "key")
        listed = {name: (*path, index) for index, name in enumerate(key)}
        for name, place in ({key: path} if isinstance(key, str) else listed).items():
            if name == STACK_POINTER or name in BUILT_IN - THREAD_KEYS:
                self.report(place, f"{quote(name)} is not a key: take a field that both events have, or tid")
                continue
            try:
                check_name(name)
            except GrammarError as error:
                self.report(place, error.message, column=error.column)
            else:
                yield ("tid" if name == "common_pid" else name), place

    def _step(self, name: str, half: str | HalfModel) -> Alternative:
        """Build an event in between, whose time is the field ``name``."""
        if name in BUILT_IN or name == STACK_POINTER:
            self._refuse_step(name, "is a built-in field")
        return self._early(half, ("through", name), {})

    def _refuse_step(self, name: str, why: str) -> None:
        path = (*self.path, "pair", "through", name)
        self.report(path, f"{name!r} {why}: choose another name", at_key=True)

    def _early(self, half: str | HalfModel, at: Path, fetch: Mapping[str, Fetched]) -> Alternative:
        """Build an event before the one that ends the pair. Its ``return`` is not the pair's."""
        found = self._half(half, at, fetch, None)
        attach, path = found.attach, (*self.path, "pair", *at)
        if "return" in attach.fetch:
            own = not isinstance(half, str) and "fetch" in half.model_fields_set
            self.report((*path, "fetch", "return") if own else self.places["fetch"], RETURN_OF_END)
        if attach.filter and "return" in parse_filter(attach.filter, fractions=True).fields:
            self.report((*path, "filter"), RETURN_OF_END)
        fields = {name: type_ for name, type_ in found.fields.items() if name != "return"}
        return Alternative(replace(attach, returns=None, guessed=False), fields)

    def _half(
        self,
        half: str | HalfModel,
        at: Path,
        fetch: Mapping[str, Fetched],
        returns: str | None,
    ) -> Alternative:
        """Build one event, which on a tracepoint also fetches the fields of the key."""
        own = _whole(half)
        path = (*self.path, "pair", *at)
        target = parse_target(own.to)
        if target.is_joined or target.is_pattern:
            place = path if isinstance(half, str) else (*path, "to")
            self.report(place, f"{target} is not one event: name the one that is meant")
        whole = self.probe.model_copy(update={"fetch": fetch, "filter": None, "returns": returns})
        probe, places = in_force(whole, own, path, {**self.places, "returns": PLACES["returns"]})
        fetched = {**(probe.fetch or {})}
        for key, place in self.keys.items():
            if key in fetched and fetched[key] is None:
                self.report(place, f"{quote(key)} is null at {target}: both events must have the key")
            elif fetched.get(key) == "$retval" and own.returns is None:
                fetched[key] = "$retval:x64"  # unsigned like arguments; the guessed type is signed
            elif key in fetched or key in THREAD_KEYS:
                continue
            elif target.kind.on_event:
                fetched[key] = key
            else:
                sentence = f"{target} has no {quote(key)}: fetch it there, as {{to: …, fetch: {{…}}}}"
                self.report(place, sentence)
        probe = probe.model_copy(update={"fetch": fetched})
        return AlternativeBuilder(probe, target, places, self.report).alternative()

    def _compare_keys(self, halves: list[Alternative]) -> None:
        """Refuse a key that is text at one event and a number at another: the values would never be equal."""
        for key, place in self.keys.items():
            known = {str(half.attach.target): half.fields.get(key) for half in halves}
            text = [target for target, found in known.items() if found and found.is_string]
            number = [target for target, found in known.items() if found and not found.is_string]
            if text and number:
                self.report(place, f"{quote(key)} is text at {text[0]}, and a number at {number[0]}")

    def _compare_nulls(self, begins: list[Attach]) -> None:
        """Refuse a field that is null at one of the events that begin the pair, and not at another."""
        for name in sorted({name for begin in begins for name in begin.absent}):
            if there := [str(begin.target) for begin in begins if name in begin.fetch]:
                where = next(str(begin.target) for begin in begins if name in begin.absent)
                sentence = f"{quote(name)} is null at {where}, and a field at {there[0]}: let it be the same"
                self.report((*self.path, "pair", "from"), sentence)

    def _filter(self, fields: Mapping[str, FieldType | None]) -> str | None:
        """Return the pair's own filter, which the agent evaluates because it has both events."""
        if self.probe.filter is None:
            return None
        path = self.places["filter"]
        known = {name: known for name, known in fields.items() if known is not None}
        names = {kernel: ours for kernel, ours in AGENT_NAMES.items() if kernel not in fields}
        parsed = parse_filter(self.probe.filter, fractions=True).rename(names)
        for part in parsed.comparisons:
            why: str | None = wrong_time(part, fields.get(part.name))
            if why:
                self.report(path, why, column=part.value_column)
                continue
            if part.name == "return" and part.name not in fields:
                why = "there is no 'return' here: what ends the pair returns nothing"
            elif part.name not in fields:
                why = no_field(part.name, fields)
            elif part.name in known:
                why = wrong_comparison(part, known[part.name])
            if why:
                self.report(path, why, column=part.column)
            elif odd := odd_duration(part):
                self.report.warn(path, odd, column=part.column)
        return parsed.render()


def _whole(half: str | HalfModel) -> HalfModel:
    """Return an event of a pair in its long form."""
    return HalfModel(to=half) if isinstance(half, str) else half


def _common_type(types: list[FieldType | None]) -> FieldType | None:
    """Return the type of a field of several events: the shared one, else text if one is text, else None."""
    same = all(one == types[0] for one in types)
    return types[0] if same else next((one for one in types if one and one.is_string), None)
