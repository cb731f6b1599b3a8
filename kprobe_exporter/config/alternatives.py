"""The alternatives of one probe: places of single events and of calls, and pairs of events."""

from collections.abc import Iterator

from kprobe_exporter.config.schema import AttachModel, HalfModel, PairModel, ProbeModel
from kprobe_exporter.config.sites import AGENT_NAMES, Alternative, Refuse, Site
from kprobe_exporter.config.values import Attach
from kprobe_exporter.config.wording import Path, quote
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.evaluate import FLOAT, FieldType, check_fields
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.grammar.target import Kind, Target, parse_target

THREAD_KEYS = frozenset({"tid", "pid", "cpu"})
"""What every event has and a pair may have as its key, without fetching it."""


def alternatives(probe: ProbeModel, refuse: Refuse, defined: Target | None = None) -> tuple[Alternative, ...]:
    """All alternatives of a well-formed probe, in order; what is wrong goes to ``refuse``.

    ``defined`` is what the probe's definition names, the only alternative then.
    """
    found = tuple(_alternatives(probe, refuse, defined))
    if found:
        _refuse_idle_keys(probe, found, refuse)
        if len(found) > 1:
            _refuse_patterns(found, refuse)
    return found


def _alternatives(probe: ProbeModel, refuse: Refuse, defined: Target | None) -> Iterator[Alternative]:
    if defined:
        own = AttachModel.model_construct({"to"}, to=str(defined))
        yield Site(probe, defined, own, ("definition",), refuse).alternative()
        return
    entries = probe.attach if isinstance(probe.attach, list) else [probe.attach]
    for index, entry in enumerate(entries):
        path: Path = ("attach", index) if isinstance(probe.attach, list) else ("attach",)
        if entry is None:
            continue
        own = AttachModel(to=entry) if isinstance(entry, str) else entry
        if own.pair is not None:
            yield _Pair(probe, own, own.pair, path, refuse).alternative()
        elif own.to is not None:
            yield Site(probe, parse_target(own.to), own, path, refuse).alternative()


def _refuse_idle_keys(probe: ProbeModel, found: tuple[Alternative, ...], refuse: Refuse) -> None:
    """Keys that would silently do nothing."""
    kinds = {target.kind for one in found for target in (one.attach.target.parts or (one.attach.target,))}
    if probe.maxactive and not kinds & {Kind.KRETPROBE, Kind.FEXIT, Kind.CALL}:
        refuse(("maxactive",), "only a kretprobe has it, and none is attached: leave it out")
    if not any(one.attach.returns for one in found):
        for key in ("returns", "return_buckets"):
            if getattr(probe, key) is not None:
                refuse((key,), "nothing here has a return value to read: leave it out")
    if probe.duration_buckets is not None and not any(one.attach.target.kind.is_joined for one in found):
        refuse(("duration_buckets",), "nothing here takes time: attach a call or a pair, or leave it out")


def _refuse_patterns(found: tuple[Alternative, ...], refuse: Refuse) -> None:
    """What a pattern names is probed together: that is no alternative to anything."""
    for index, one in enumerate(found):
        if one.attach.target.is_pattern:
            refuse(("attach", index), f"{one.attach.target} is a pattern, which has no alternatives")


class _Pair:
    """One pair in the making. What the probe fetches is read at its first event, as with calls."""

    def __init__(
        self, probe: ProbeModel, own: AttachModel, pair: PairModel, path: Path, refuse: Refuse
    ) -> None:
        self.probe, self.own, self.pair = probe, own, pair
        self.path, self.refuse = path, refuse

    def alternative(self) -> Alternative:
        """Check, and put together."""
        own, pair = self.own, self.pair
        keys = [pair.key] if isinstance(pair.key, str) else pair.key
        fetch = (own.fetch if "fetch" in own.model_fields_set else self.probe.fetch) or {}
        returns = own.returns if "returns" in own.model_fields_set else self.probe.returns
        listed = isinstance(pair.begin, list)
        begins = [
            self._half(half, ("from", index) if listed else ("from",), keys, fetch, None)
            for index, half in enumerate(pair.begin if isinstance(pair.begin, list) else [pair.begin])
        ]
        end = self._half(pair.to, ("to",), keys, {}, returns)
        fields: dict[str, FieldType | None] = {**end.fields}
        for name in {name for begin in begins for name in begin.fields}:
            types = [begin.fields[name] for begin in begins if name in begin.fields]
            if len(types) == len(begins) and all(one == types[0] for one in types):
                fields[name] = types[0]
        fields |= {"duration": FLOAT}
        target = Target(Kind.PAIR, parts=tuple(half.attach.target for half in (*begins, end)))
        attach = Attach(
            target,
            {},
            self._filter(fields),
            end.attach.returns,
            end.attach.guessed,
            tuple(begin.attach for begin in begins),
            end.attach,
            tuple(keys),
        )
        return Alternative(attach, fields)

    def _half(
        self, half: str | HalfModel, at: Path, keys: list[str], fetch: dict[str, str], returns: str | None
    ) -> Alternative:
        """One event, with the keys that it has by themselves fetched."""
        own = HalfModel(to=half) if isinstance(half, str) else half
        path = (*self.path, "pair", *at)
        target = parse_target(own.to)
        if target.kind.is_joined or target.is_pattern:
            self.refuse(path, f"{target} is not one event: name the one that is meant")
        probe = self.probe.model_copy(update={"fetch": fetch, "filter": None, "returns": returns})
        fetched = dict((own.fetch if "fetch" in own.model_fields_set else fetch) or {})
        for place, key in enumerate(keys):
            if key in fetched or key in THREAD_KEYS:
                continue
            if target.kind.on_event:
                fetched[key] = key
            else:
                where = ("key",) if isinstance(self.pair.key, str) else ("key", place)
                sentence = f"{target} has no {quote(key)}: fetch it there, as {{to: …, fetch: {{…}}}}"
                self.refuse((*self.path, "pair", *where), sentence)
        if "returns" not in own.model_fields_set and returns is not None and not target.kind.is_return:
            probe = probe.model_copy(update={"returns": None})
        whole = own.model_copy(update={"fetch": fetched})
        whole.model_fields_set.add("fetch")
        return Site(probe, target, whole, path, self.refuse).alternative()

    def _filter(self, fields: dict[str, FieldType | None]) -> str | None:
        """The pair's own filter, for the agent, which has both events."""
        own = "filter" in self.own.model_fields_set
        text = self.own.filter if own else self.probe.filter
        if text is None:
            return None
        path: Path = (*self.path, "filter") if own else ("filter",)
        known = {name: known for name, known in fields.items() if known is not None}
        try:
            parsed = parse_filter(text, fractions=True).rename(AGENT_NAMES)
        except GrammarError as error:
            self.refuse(path, error.message, column=error.column)
            return None
        for part in parsed.comparisons:
            why = None
            if part.name not in fields:
                why = (
                    f"there is no field {quote(part.name)} to filter on: fetch it{closest(part.name, fields)}"
                )
            elif part.name in known:
                why = next(map(str, check_fields(part, known)), None)
            if why:
                self.refuse(path, why, column=part.column)
        return parsed.render()
