"""The alternatives of one probe: merged with its own keys, checked, and which fields they yield."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from kprobe_exporter.config.schema import AttachModel, ProbeModel
from kprobe_exporter.config.values import Attach, return_type
from kprobe_exporter.config.wording import Path, quote
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.expression import KPROBE, KRETPROBE
from kprobe_exporter.grammar.fetch import check_name, parse_fetch
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.lexis import NAME, closest
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from kprobe_exporter.model import ReturnType

FieldKind: TypeAlias = Literal["number", "text", "unknown"]
"""What a field holds; only the running kernel knows the type of a tracepoint's field."""

# What every event has.
_COMMON: Mapping[str, FieldKind] = {
    "comm": "text",
    "tid": "number",
    "pid": "number",
    "cpu": "number",
}
BUILT_IN = frozenset({*_COMMON, "return", "caller", "symbol", "duration"})

# Fields that the kernel's filter knows of every event (kernel/trace/trace_events.c,
# trace_define_common_fields() and trace_define_generic_fields()).
_KERNEL_FIELDS = frozenset(
    {"comm", "COMM", "cpu", "CPU"} | {"common_pid", "common_type", "common_flags", "common_preempt_count"}
)

MAX_FETCH = 64


class Refuse(Protocol):
    """Takes a problem: its path within the probe, and what is wrong."""

    def __call__(self, path: Path, message: str, *, column: int = 0, at_key: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative, and the fields that its events have."""

    attach: Attach
    fields: Mapping[str, FieldKind]


def alternatives(probe: ProbeModel, refuse: Refuse) -> tuple[Alternative, ...]:
    """All alternatives of a well-formed probe, in order; what is wrong goes to ``refuse``."""
    found = tuple(_Merged(probe, model, path, refuse).alternative() for path, model in _written(probe))
    _refuse_return_keys(probe, found, refuse)
    return found


def _written(probe: ProbeModel) -> Iterator[tuple[Path, AttachModel]]:
    """The alternatives as written, with their paths in the probe."""
    entries = probe.attach if isinstance(probe.attach, list) else [probe.attach]
    for index, entry in enumerate(entries):
        path: Path = ("attach", index) if isinstance(probe.attach, list) else ("attach",)
        yield path, AttachModel(to=entry) if isinstance(entry, str) else entry


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

    def __init__(self, probe: ProbeModel, own: AttachModel, path: Path, refuse: Refuse) -> None:
        self.probe, self.own, self.path, self.refuse = probe, own, path, refuse
        self.target: Target = parse_target(own.to)
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

    def alternative(self) -> Alternative:
        """Check, and put together."""
        fields: dict[str, FieldKind] = {**_COMMON, **self._own_fields()}
        fetch: dict[str, str] = {}
        if len(self.fetch) > MAX_FETCH:
            self.refuse(self._path("fetch"), f"at most {MAX_FETCH} can be fetched")
        for name, text in self.fetch.items():
            path = (*self._path("fetch"), name)
            try:
                self._check_name(name, path)
                fetch[name], fields[name] = self._fetched(text)
            except GrammarError as error:
                self.refuse(path, self._here(error.message, "fetch"), column=error.column)
                fields[name] = "unknown"
        self._check_filter(fields)
        return Alternative(Attach(self.target, fetch, self.filter, self.returns), fields)

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

    def _own_fields(self) -> dict[str, FieldKind]:
        """The fields that come with the kind of the probe."""
        if self.target.kind is Kind.TRACEPOINT:
            return {}
        if self.target.kind is Kind.KPROBE:
            return {"symbol": "text"}
        fields: dict[str, FieldKind] = {"symbol": "text", "caller": "text"}
        if self.returns and self.returns.fetch:
            fields["return"] = "number"
        return fields

    def _check_name(self, name: str, path: Path) -> None:
        tracepoint = self.target.kind is Kind.TRACEPOINT
        if name in BUILT_IN and not (name == "return" and tracepoint):
            self.refuse(path, f"{name!r} is a built-in field: choose another name", at_key=True)
        else:
            check_name(name)

    def _fetched(self, text: str) -> tuple[str, FieldKind]:
        """A fetch argument as the kernel takes it, and what it yields. Raises GrammarError."""
        if self.target.kind is Kind.TRACEPOINT:
            if not NAME.fullmatch(text):
                raise GrammarError(
                    f"on a tracepoint this is the name of one of its fields, not {quote(text)}"
                )
            return text, "unknown"
        entry = KPROBE._replace(entry=self.target.offset == 0)
        found = parse_fetch(text, KRETPROBE if self.target.kind is Kind.KRETPROBE else entry)
        if found.expression == "$arg*":
            raise GrammarError("$arg* is many: give each argument a name of its own")
        return found.body, "number" if found.value_kind == "int" else "text"

    def _check_filter(self, fields: Mapping[str, FieldKind]) -> None:
        if self.filter is None:
            return
        for name in sorted(parse_filter(self.filter).fields):
            if why := self._wrong_in_filter(name, fields):
                used = re.search(rf"\b{name}\b", self.filter)
                column = used.start() if used else 0
                self.refuse(self._path("filter"), self._here(why, "filter"), column=column)

    def _wrong_in_filter(self, name: str, fields: Mapping[str, FieldKind]) -> str | None:
        if name == "return" and name not in fields:
            if self.target.kind is Kind.TRACEPOINT:
                return "a tracepoint has no 'return' of its own: add fetch: {return: FIELD}"
            why = "returns: void" if self.target.kind is Kind.KRETPROBE else "this is an entry"
            return f"there is no 'return' here: {why}"
        # The names of a tracepoint's own fields are the running kernel's to know.
        usable = {*self.fetch, *_KERNEL_FIELDS, *({"return"} & fields.keys())}
        if name in usable or self.target.kind is Kind.TRACEPOINT:
            return None
        if name in ("tid", "pid"):
            return f"the kernel's filter has no {name!r}: common_pid is the thread's id"
        if name in BUILT_IN:
            return f"the kernel's filter has no {name!r}: use it as a label instead"
        return f"there is no field {quote(name)} to filter on: fetch it{closest(name, usable)}"
