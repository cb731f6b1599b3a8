"""One place to attach to: merged with the keys of its probe, checked, and which fields it yields."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from kprobe_exporter.config.schema import AttachModel, HalfModel, ProbeModel
from kprobe_exporter.config.values import Attach, return_type
from kprobe_exporter.config.wording import Path, quote
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.condition import Filter, split_filter
from kprobe_exporter.grammar.evaluate import (
    COMMON_FIELDS,
    FLOAT,
    STRING,
    FieldType,
    check_fields,
    field_type,
)
from kprobe_exporter.grammar.expression import KPROBE, KRETPROBE
from kprobe_exporter.grammar.expression import Site as FetchSite
from kprobe_exporter.grammar.fetch import FetchArg, check_name, parse_fetch
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.lexis import NAME, closest
from kprobe_exporter.grammar.place import BASES
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.model.values import STACK_POINTER, ReturnType

_S32 = FieldType("int", 4, signed=True)
_S64 = FieldType("int", 8, signed=True)

# What every event has, as the agent reads it.
_COMMON: Mapping[str, FieldType] = {"comm": STRING, "tid": _S32, "pid": _S32, "cpu": _S32}
BUILT_IN = frozenset({*_COMMON, "return", "caller", "symbol", "duration"})

AGENT_NAMES = {"common_pid": "tid", "common_cpu": "cpu", "CPU": "cpu", "COMM": "comm"}
"""What the kernel's filter calls by another name than the agent."""

MAX_FETCH = 64

_ARGUMENT = re.compile(r"\$arg[1-9]\d?(?!\w)")


class Refuse(Protocol):
    """Takes a problem: its path within the probe, and what is wrong."""

    def __call__(self, path: Path, message: str, *, column: int = 0, at_key: bool = False) -> None: ...

    def warn(self, path: Path, message: str, *, column: int = 0) -> None:
        """Take what is no problem, and yet to be told."""


class Alternative(NamedTuple):
    """One alternative, and the fields that its events have in the agent.

    A field's type is None where only the running kernel knows it: a tracepoint's.
    """

    attach: Attach
    fields: Mapping[str, FieldType | None]


class Site:
    """One place in the making: of an event, or of a call with both its halves."""

    def __init__(
        self,
        probe: ProbeModel,
        target: Target,
        own: AttachModel | HalfModel,
        path: Path,
        refuse: Refuse,
        written: Mapping[str, Path] | None = None,
    ) -> None:
        """``written`` tells where a key stands that is neither the place's own nor the probe's."""
        self.probe, self.target, self.own = probe, target, own
        self.path, self.refuse, self.written = path, refuse, written or {}
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
        self.guessed = returns is None
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
        guessed = self.returns is not None and self.guessed
        attach = Attach(self.target, fetch, self.filter, self.returns, guessed)
        return Alternative(_in_halves(attach) if self.target.kind.is_call else attach, self.fields)

    def _path(self, key: str) -> Path:
        """Where the key is written that is in force: in the alternative, or for the whole probe."""
        own = key in self.own.model_fields_set
        return (*self.path, key) if own else self.written.get(key, (key,))

    def _here(self, message: str, key: str) -> str:
        """Names the alternative, where the key that does not suit it stands elsewhere."""
        if self._path(key)[0] == "attach" or not isinstance(self.probe.attach, list):
            return message
        return f"{message} (for {self.target}: an alternative can have its own {key})"

    def _returns(self, name: str | None) -> ReturnType | None:
        kind = self.target.kind
        fetched = kind is Kind.TRACEPOINT and "return" in self.fetch
        if kind.is_return or kind.is_call or fetched:
            return return_type(name or "long")
        if self.own.returns is not None:
            self.refuse((*self.path, "returns"), f"{self.target} has no return value to read")
        return None

    def _own_fields(self) -> None:
        """The fields that come with the kind of the probe."""
        kind = self.target.kind
        if kind is Kind.TRACEPOINT:
            return
        own: dict[str, FieldType] = {"symbol": STRING}
        if kind in (Kind.KRETPROBE, Kind.FEXIT, Kind.CALL):
            own["caller"] = STRING
        if kind.is_joined:  # the agent filters, by what it knows; it takes some of the kernel's names
            own["duration"] = FLOAT
            self.compared |= {**_COMMON, **own, **{name: COMMON_FIELDS[name] for name in AGENT_NAMES}}
        else:
            self.compared |= COMMON_FIELDS
        self.fields |= own
        if self.returns and self.returns.fetch:
            kept = field_type(parse_fetch(f"$retval:{self.returns.fetch}"))
            # Where the type is a guess, or a pointer, the agent makes errors negative.
            read = _S64 if self.returns.wide or self.returns.pointer else kept
            self.fields["return"] = read
            self.compared["return"] = read if kind.is_joined else kept

    def _check_name(self, name: str, path: Path) -> None:
        own = name == "return" and self.target.kind is Kind.TRACEPOINT
        if name in BUILT_IN and not own:
            self.refuse(path, f"{name!r} is a built-in field: choose another name", at_key=True)
        elif name == STACK_POINTER:
            self.refuse(path, f"{name!r} is the agent's own: choose another name", at_key=True)
        else:
            check_name(name)

    def _fetched(self, name: str, text: str, path: Path) -> str:
        """A fetch argument as the kernel takes it; its type is noted. Raises GrammarError."""
        if self.target.kind.on_event:
            if not NAME.fullmatch(text):
                raise GrammarError(
                    f"on a tracepoint this is the name of one of its fields, not {quote(text)}"
                )
            return text
        found = _parse(text, self.target)
        if found.expression == "$arg*":
            raise GrammarError("$arg* is many: give each argument a name of its own")
        if found.warning:
            self.refuse.warn(path, found.warning)
        if found.expression == "$retval" and found.type is None and self.returns:
            # Without a type the kernels differ: 6.1 shows -2 as 0xfffffffffffffffe, 6.12 asks BTF.
            found = replace(found, type=self.returns.fetch)
        self.fields[name] = _as_read(found)
        self.compared[name] = _as_read(found) if self.target.kind.is_joined else field_type(found)
        return text if self.target.kind.in_file and "$arg" in text else found.body

    def _check_filter(self) -> None:
        if self.filter is None:
            return
        try:
            # The kernel knows no fractions; what takes time is filtered by the agent.
            parts = parse_filter(self.filter, fractions=self.target.kind.is_joined).comparisons
        except GrammarError as error:
            self.refuse(self._path("filter"), self._here(error.message, "filter"), column=error.column)
            return
        for part in parts:
            why = self._wrong_in_filter(part.name)
            if not why and part.name in self.compared:
                why = next(map(str, check_fields(part, self.compared)), None)
            if why:
                self.refuse(self._path("filter"), self._here(why, "filter"), column=part.column)

    def _wrong_in_filter(self, name: str) -> str | None:
        kind = self.target.kind
        if name == "return" and name not in self.fields:
            if kind is Kind.TRACEPOINT:
                return "a tracepoint has no 'return' of its own: add fetch: {return: FIELD}"
            why = "returns: void" if kind.is_return or kind.is_call else "this is an entry"
            return f"there is no 'return' here: {why}"
        # The names of a tracepoint's own fields are the running kernel's to know.
        usable = {*self.fetch, *self.compared}
        if name in usable or kind is Kind.TRACEPOINT:
            return None
        return no_field(name, usable) if kind.is_joined else self._unknown_to_the_kernel(name, usable)

    @staticmethod
    def _unknown_to_the_kernel(name: str, usable: Iterable[str]) -> str:
        if name == "duration":
            return "there is no 'duration' here: only a call or a pair takes time"
        if name in ("tid", "pid"):
            return f"the kernel's filter has no {name!r}: common_pid is the thread's id"
        if name in BUILT_IN:
            return f"the kernel's filter has no {name!r}: use it in a metric's `where`, or as a label"
        return no_field(name, usable)


def no_field(name: str, usable: Iterable[str]) -> str:
    """The sentence that refuses a filter on what is not fetched."""
    if name in COMMON_FIELDS:
        return f"{name!r} is not read with an event, so what takes time cannot be filtered by it"
    return f"there is no field {quote(name)} to filter on: fetch it{closest(name, usable)}"


def _in_halves(attach: Attach) -> Attach:
    """A call with its entry and its return. Only what holds for both is the kernel's to filter."""
    enter, leave = attach.target.halves
    early, late = None, None
    if attach.filter is not None:
        early, late = split_filter(parse_filter(attach.filter, fractions=True), _same_in_both)
    in_kernel = early.render() if early else None
    read = attach.target.kind is Kind.SYSCALL and attach.returns is not None and attach.returns.fetch
    returned = {"return": "ret"} if read else {}
    names = {kernel: ours for kernel, ours in AGENT_NAMES.items() if kernel not in attach.fetch}
    return replace(
        attach,
        filter=late.rename(names).render() if late else None,
        begins=(Attach(enter, attach.fetch, in_kernel, None),),
        end=Attach(leave, returned, in_kernel, attach.returns, attach.guessed),
    )


def _same_in_both(part: Filter) -> bool:
    """A thread stays what it is during a call; its name, its CPU and what it looks at may change."""
    return part.fields == {"common_pid"}


def _parse(text: str, target: Target) -> FetchArg:
    """A fetch argument at its place; of a program the agent knows by itself where its arguments are."""
    if not target.kind.in_file:
        return parse_fetch(text, _site(target))
    if target.kind is Kind.URETPROBE:
        if gone := _ARGUMENT.search(text):
            sentence = f"{gone[0]} is gone when the function returns: fetch it on entry"
            raise GrammarError(sentence, text, gone.start())
        return parse_fetch(text, FetchSite("user", returns=True))
    return parse_fetch(_ARGUMENT.sub("%di", text), FetchSite("user"))


def _site(target: Target) -> FetchSite:
    """Where the arguments are still in place: an entry may be 4 bytes in, after x86-64's endbr64."""
    if target.kind in (Kind.FENTRY, Kind.FEXIT):
        return FetchSite("function", returns=target.kind is Kind.FEXIT)
    if target.kind is Kind.KRETPROBE:
        return KRETPROBE
    entry = target.offset in (0, 4) and not target.symbol[:1].isdigit()
    return KPROBE._replace(entry=entry or target.symbol in BASES)


def _as_read(arg: FetchArg) -> FieldType:
    """What the agent reads for an argument: as text what the kernel prints as text."""
    return STRING if arg.value_kind in ("str", "bare", "char") else field_type(arg)
