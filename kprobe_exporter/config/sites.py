"""The alternatives of one probe: merged with its own keys, checked, and which fields they yield."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from kprobe_exporter.config.schema import AttachModel, ProbeModel
from kprobe_exporter.config.values import Attach, return_type
from kprobe_exporter.config.wording import Path, quote
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.evaluate import COMMON_FIELDS, STRING, FieldType, check_fields, field_type
from kprobe_exporter.grammar.expression import KPROBE, KRETPROBE, Site
from kprobe_exporter.grammar.fetch import FetchArg, check_name, parse_fetch
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.lexis import NAME, closest
from kprobe_exporter.grammar.place import BASES
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from kprobe_exporter.model import ReturnType

_S32 = FieldType("int", 4, signed=True)
_S64 = FieldType("int", 8, signed=True)

# What every event has, as the agent reads it.
_COMMON: Mapping[str, FieldType] = {"comm": STRING, "tid": _S32, "pid": _S32, "cpu": _S32}
BUILT_IN = frozenset({*_COMMON, "return", "caller", "symbol", "duration"})

MAX_FETCH = 64


class Refuse(Protocol):
    """Takes a problem: its path within the probe, and what is wrong."""

    def __call__(self, path: Path, message: str, *, column: int = 0, at_key: bool = False) -> None: ...

    def warn(self, path: Path, message: str, *, column: int = 0) -> None:
        """Take what is no problem, and yet to be told."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative, and the fields that its events have in the agent.

    A field's type is None where only the running kernel knows it: a tracepoint's.
    """

    attach: Attach
    fields: Mapping[str, FieldType | None]


def alternatives(probe: ProbeModel, refuse: Refuse, defined: Target | None = None) -> tuple[Alternative, ...]:
    """All alternatives of a well-formed probe, in order; what is wrong goes to ``refuse``.

    ``defined`` is what the probe's definition names, the only alternative then.
    """
    found = tuple(_Merged(probe, *one, refuse).alternative() for one in _written(probe, defined))
    if found:
        _refuse_return_keys(probe, found, refuse)
    return found


def _written(probe: ProbeModel, defined: Target | None) -> Iterator[tuple[Target, AttachModel, Path]]:
    """The alternatives as written, with their paths in the probe."""
    if defined:
        yield defined, AttachModel.model_construct({"to"}, to=str(defined)), ("definition",)
        return
    entries = probe.attach if isinstance(probe.attach, list) else [probe.attach]
    for index, entry in enumerate(entries):
        path: Path = ("attach", index) if isinstance(probe.attach, list) else ("attach",)
        if entry is not None:
            own = AttachModel(to=entry) if isinstance(entry, str) else entry
            yield parse_target(own.to), own, path


def _refuse_return_keys(probe: ProbeModel, found: tuple[Alternative, ...], refuse: Refuse) -> None:
    """Keys that would silently do nothing."""
    if not any(one.attach.target.kind is Kind.KRETPROBE for one in found) and probe.maxactive:
        refuse(("maxactive",), "only a kretprobe has it, and none is attached: leave it out")
    if not any(one.attach.returns for one in found):
        for key in ("returns", "return_buckets"):
            if getattr(probe, key) is not None:
                refuse((key,), "nothing here has a return value to read: leave it out")


class _Merged:
    """One alternative in the making."""

    def __init__(
        self, probe: ProbeModel, target: Target, own: AttachModel, path: Path, refuse: Refuse
    ) -> None:
        self.probe, self.target, self.own = probe, target, own
        self.path, self.refuse = path, refuse
        self.fetch = probe.fetch or {}
        self.filter = probe.filter
        returns = probe.returns
        # Given as null it replaces too: that is how an alternative does without the probe's filter.
        if "fetch" in own.model_fields_set:
            self.fetch = own.fetch or {}
        if "filter" in own.model_fields_set:
            self.filter = own.filter
        if "returns" in own.model_fields_set:
            returns = own.returns
        self.returns = self._returns(returns)
        self.fields: dict[str, FieldType | None] = {**_COMMON}
        self.compared: dict[str, FieldType] = {}  # in the kernel's filter, as far as it is known here
        self._own_fields()

    def alternative(self) -> Alternative:
        """Check, and put together."""
        fetch: dict[str, str] = {}
        if len(self.fetch) > MAX_FETCH:
            self.refuse(self._path("fetch"), f"at most {MAX_FETCH} can be fetched")
        for name, text in self.fetch.items():
            path = (*self._path("fetch"), name)
            self.fields[name] = None
            try:
                self._check_name(name, path)
                fetch[name] = self._fetched(name, text, path)
            except GrammarError as error:
                self.refuse(path, self._here(error.message, "fetch"), column=error.column)
        self._check_filter()
        return Alternative(Attach(self.target, fetch, self.filter, self.returns), self.fields)

    def _path(self, key: str) -> Path:
        """Where the key is written that is in force: in the alternative, or for the whole probe."""
        return (*self.path, key) if key in self.own.model_fields_set else (key,)

    def _here(self, message: str, key: str) -> str:
        """Names the alternative, where the key that does not suit it stands elsewhere."""
        if self._path(key)[0] == "attach" or not isinstance(self.probe.attach, list):
            return message
        return f"{message} (for {self.target}: an alternative can have its own {key})"

    def _returns(self, name: str | None) -> ReturnType | None:
        kind = self.target.kind
        if kind is Kind.KRETPROBE or (kind is Kind.TRACEPOINT and "return" in self.fetch):
            return return_type(name or "long")
        if self.own.returns is not None:
            self.refuse((*self.path, "returns"), f"{self.target} has no return value to read")
        return None

    def _own_fields(self) -> None:
        """The fields that come with the kind of the probe."""
        if self.target.kind is Kind.TRACEPOINT:
            return
        self.compared |= COMMON_FIELDS
        self.fields["symbol"] = STRING
        if self.target.kind is Kind.KRETPROBE:
            self.fields["caller"] = STRING
        if self.returns and self.returns.fetch:
            kept = field_type(parse_fetch(f"$retval:{self.returns.fetch}"))
            # Where the type is a guess, or a pointer, the agent makes errors negative.
            negative = self.returns.wide or self.returns.pointer
            self.fields["return"] = _S64 if negative else kept
            self.compared["return"] = kept

    def _check_name(self, name: str, path: Path) -> None:
        tracepoint = self.target.kind is Kind.TRACEPOINT
        if name in BUILT_IN and not (name == "return" and tracepoint):
            self.refuse(path, f"{name!r} is a built-in field: choose another name", at_key=True)
        else:
            check_name(name)

    def _fetched(self, name: str, text: str, path: Path) -> str:
        """A fetch argument as the kernel takes it; its type is noted. Raises GrammarError."""
        if self.target.kind is Kind.TRACEPOINT:
            if not NAME.fullmatch(text):
                raise GrammarError(
                    f"on a tracepoint this is the name of one of its fields, not {quote(text)}"
                )
            return text
        found = parse_fetch(text, _site(self.target))
        if found.expression == "$arg*":
            raise GrammarError("$arg* is many: give each argument a name of its own")
        if found.warning:
            self.refuse.warn(path, found.warning)
        if found.expression == "$retval" and found.type is None and self.returns:
            # Without a type the kernels differ: 6.1 shows -2 as 0xfffffffffffffffe, 6.12 asks BTF.
            found = replace(found, type=self.returns.fetch)
        self.fields[name] = _as_read(found)
        self.compared[name] = field_type(found)
        return found.body

    def _check_filter(self) -> None:
        if self.filter is None:
            return
        for part in parse_filter(self.filter).comparisons:
            why = self._wrong_in_filter(part.name)
            if not why and part.name in self.compared:
                why = next(map(str, check_fields(part, self.compared)), None)
            if why:
                self.refuse(self._path("filter"), self._here(why, "filter"), column=part.column)

    def _wrong_in_filter(self, name: str) -> str | None:
        if name == "return" and name not in self.fields:
            if self.target.kind is Kind.TRACEPOINT:
                return "a tracepoint has no 'return' of its own: add fetch: {return: FIELD}"
            why = "returns: void" if self.target.kind is Kind.KRETPROBE else "this is an entry"
            return f"there is no 'return' here: {why}"
        # The names of a tracepoint's own fields are the running kernel's to know.
        usable = {*self.fetch, *self.compared}
        if name in usable or self.target.kind is Kind.TRACEPOINT:
            return None
        if name in ("tid", "pid"):
            return f"the kernel's filter has no {name!r}: common_pid is the thread's id"
        if name in BUILT_IN:
            return f"the kernel's filter has no {name!r}: use it in a metric's `where`, or as a label"
        return f"there is no field {quote(name)} to filter on: fetch it{closest(name, usable)}"


def _site(target: Target) -> Site:
    """Where the arguments are still in place: an entry may be 4 bytes in, after x86-64's endbr64."""
    if target.kind is Kind.KRETPROBE:
        return KRETPROBE
    entry = target.offset in (0, 4) and not target.symbol[:1].isdigit()
    return KPROBE._replace(entry=entry or target.symbol in BASES)


def _as_read(arg: FetchArg) -> FieldType:
    """What the agent reads for an argument: as text what the kernel prints as text."""
    return STRING if arg.value_kind in ("str", "bare", "char") else field_type(arg)
