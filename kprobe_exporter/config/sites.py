"""One attach target: merged with the keys of its probe, checked, and the fields that its events have."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from kprobe_exporter.config.model import ERRNO, GUESSED_RETURN, Attach, WrittenPath, return_type
from kprobe_exporter.config.program_text import filtered_strings, is_vector, spelled, string_behind
from kprobe_exporter.config.schema import AttachModel, HalfModel, ProbeModel
from kprobe_exporter.config.wording import Path, quote
from kprobe_exporter.config.yaml_source import Report
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.evaluate import (
    COMMON_FIELDS,
    FLOAT,
    STRING,
    FieldType,
    field_type,
    wrong_comparison,
    wrong_time,
)
from kprobe_exporter.grammar.expression import KPROBE, KRETPROBE, FetchSite
from kprobe_exporter.grammar.fetch import MOST_ARGS, FetchArg, check_name, inner_path, parse_fetch
from kprobe_exporter.grammar.filter import KERNEL_WORDS, USER_STRING, parse_filter
from kprobe_exporter.grammar.formula import DURATION, Comparison, split
from kprobe_exporter.grammar.lexis import NAME, closest
from kprobe_exporter.grammar.members import is_path, split_type
from kprobe_exporter.grammar.place import BASES
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.model.records import (
    CALLER_ADDRESS,
    COMMON,
    COMMON_COMM,
    STACK_POINTER,
)
from kprobe_exporter.model.values import ReturnType

_S32 = FieldType("int", 4, signed=True)
_S64 = FieldType("int", 8, signed=True)
_U64 = FieldType("int", 8, signed=False)

# The agent reads these fields with every event.
_SHORT: Mapping[str, FieldType] = {"comm": STRING, "tid": _S32, "pid": _S32, "cpu": _S32}
_COMMON: Mapping[str, FieldType] = {**_SHORT, **{name: _SHORT[short] for name, short in COMMON.items()}}
BUILT_IN = frozenset({*_COMMON, "return", "caller", "symbol", "duration"})

AGENT_NAMES = {word: name for name, word in KERNEL_WORDS.items()}
"""Words of the kernel's filter to the agent's names for the same fields."""

EITHER = {"$comm", "$COMM"}
"""Variables of an event: its own ``comm`` or else the thread's name; and always the thread's name."""

_ARGUMENT = re.compile(r"\$arg[1-9]\d?(?!\w)")

_NOT_IN_THE_KERNEL: Mapping[str, str] = {
    "duration": "there is no 'duration' here: only a call or a pair takes time",
    **dict.fromkeys(
        ("tid", "pid", "common_tgid"), "the kernel's filter has no {!r}: common_pid is the thread's id"
    ),
    **dict.fromkeys(
        ("caller", "symbol"), "the kernel's filter has no {!r}: use it in a metric's `where`, or as a label"
    ),
}
"""Built-in fields that the kernel's filter lacks, each with the sentence that refuses it."""


class Alternative(NamedTuple):
    """One alternative, and the fields that its events have in the agent.

    The type of a field is None if only the running kernel knows it, as for a tracepoint's fields.
    """

    attach: Attach
    fields: Mapping[str, FieldType | None]


Alternatives: TypeAlias = tuple[Alternative, ...]
"""Those of one probe, in order."""


PLACES: Mapping[str, Path] = {"fetch": ("fetch",), "filter": ("filter",), "returns": ("returns",)}
"""The paths within a probe of the keys that an alternative may replace by its own."""


def in_force(
    probe: ProbeModel, own: AttachModel | HalfModel, path: Path, places: Mapping[str, Path] = PLACES
) -> tuple[ProbeModel, Mapping[str, Path]]:
    """Return the probe with its keys replaced by an alternative's, and the paths of the keys in force.

    A key that is null replaces the probe's as well, so an alternative can drop the probe's filter.
    """
    keys = own.model_fields_set & PLACES.keys()
    replaced = probe.model_copy(update={key: getattr(own, key) for key in keys})
    return replaced, {**places, **{key: (*path, key) for key in keys}}


class AlternativeBuilder:
    """Builds the alternative of one attach target: a single event, or a call with its entry and return.

    ``probe`` has the keys in force, and ``places`` their paths.
    """

    def __init__(self, probe: ProbeModel, target: Target, places: Mapping[str, Path], report: Report) -> None:
        self.probe, self.target, self.places, self.report = probe, target, places, report
        fetch = probe.fetch or {}
        self.fetch = {name: text for name, text in fetch.items() if text is not None}
        self.absent = frozenset(fetch.keys() - self.fetch.keys())
        self.strings = filtered_strings(probe.filter, self.fetch, target)
        for word, name in self.strings.items():
            self.fetch.setdefault(name, string_behind(word))
        self.returns = self._returns(probe.returns)
        self.fields: dict[str, FieldType | None] = {**_COMMON}
        self.compared: dict[str, FieldType] = {}  # the filter's fields whose types are known here
        self._own_fields()

    def alternative(self) -> Alternative:
        """Check the target and return its alternative."""
        fetch: dict[str, str] = {}
        paths: dict[str, tuple[WrittenPath, ...]] = {}
        if len(self.fetch) > MOST_ARGS:
            self.report(self.places["fetch"], f"at most {MOST_ARGS} can be fetched")
        for name, written in self.fetch.items():
            path = (*self.places["fetch"], name)
            self.fields[name] = None
            texts = _numbered(path, written) if isinstance(written, list) else {path: written}
            found = []
            for at, text in texts.items():
                try:
                    self._check_name(name, path)
                    found.append(self._fetched(name, spelled(text, self.target), at))
                except GrammarError as error:
                    self.report(at, self._here(error.message, "fetch"), column=error.column)
            if isinstance(written, list) and not all(map(self._is_path, found)):
                self.report(path, "a list is for paths into the kernel's structures, such as sk->sk_protocol")
            if len(found) < len(texts):
                continue
            fetch[name] = found[0]
            if self._is_path(found[0]):
                places = (self.report.place_of(at) for at in texts)
                paths[name] = tuple(WrittenPath(text, at) for text, at in zip(found, places, strict=True))
        for name in sorted(self.absent):
            self.fields[name] = None
            try:
                self._check_name(name, (*self.places["fetch"], name))
            except GrammarError as error:
                self.report((*self.places["fetch"], name), error.message, column=error.column)
        filter_text = self._checked_filter()
        guessed = self.returns is not None and self.probe.returns is None
        attach = Attach(
            self.target,
            fetch,
            filter_text,
            self.returns,
            guessed,
            absent=self.absent,
            paths=paths,
            vectors=frozenset(name for name, written in self.fetch.items() if is_vector(written)),
        )
        return Alternative(_in_halves(attach) if self.target.is_call else attach, self.fields)

    def _here(self, message: str, key: str) -> str:
        """Add the target to a message about a key that is written outside the alternative."""
        if self.places[key][0] == "attach" or not isinstance(self.probe.attach, list):
            return message
        return f"{message} (for {self.target}: an alternative can have its own {key})"

    def _returns(self, name: str | None) -> ReturnType | None:
        kind = self.target.kind
        fetched = kind is Kind.TRACEPOINT and "return" in self.fetch
        if kind.is_return or self.target.is_call or fetched:
            found = return_type(name) if name else GUESSED_RETURN
            # A system call's tracepoint holds a C long: its upper half is never garbage.
            if kind is Kind.SYSCALL or self.target.system == "syscalls":
                found = found._replace(wide=False)
            return found._replace(errno=found.name == ERRNO) if kind.in_file else found
        if name is not None and self.places["returns"] != PLACES["returns"]:
            self.report(self.places["returns"], f"{self.target} has no return value to read")
        return None

    def _own_fields(self) -> None:
        """Add the fields that the target's kind provides."""
        kind = self.target.kind
        if kind is Kind.TRACEPOINT:
            return
        own: dict[str, FieldType] = {"symbol": STRING}
        if kind in (Kind.KRETPROBE, Kind.FEXIT) or (kind is Kind.CALL and self.target.is_call):
            own["caller"] = STRING
        if kind in (Kind.UPROBE, Kind.URETPROBE, Kind.UCALL) and not self.target.offset:
            own["caller"] = _U64  # the agent makes a name of it for a label
        if (
            self.target.is_joined
        ):  # the agent filters by its own fields, and accepts some of the kernel's names
            own["duration"] = FLOAT
            self.compared |= {**_COMMON, **own, **{word: COMMON_FIELDS[word] for word in AGENT_NAMES}}
        else:
            self.compared |= {**COMMON_FIELDS, COMMON_COMM: STRING}
        self.fields |= own
        if self.returns and self.returns.fetch:
            kept = field_type(parse_fetch(f"$retval:{self.returns.fetch}"))
            # If the width is a guess or the value is a pointer, the agent makes errors negative.
            read = _S64 if self.returns.wide or self.returns.pointer else kept
            self.fields["return"] = read
            self.compared["return"] = read if self.target.is_joined else kept

    def _check_name(self, name: str, path: Path) -> None:
        tracepoint = self.target.kind is Kind.TRACEPOINT
        own = tracepoint and (name == "return" or is_own_field(name, self.fetch.get(name)))
        if name in BUILT_IN and not own:
            self.report(path, f"{name!r} is a built-in field: choose another name", at_key=True)
        elif name in (STACK_POINTER, CALLER_ADDRESS) or (tracepoint and name == KERNEL_WORDS[COMMON_COMM]):
            self.report(path, f"{name!r} is the agent's own: choose another name", at_key=True)
        else:
            check_name(name)

    def _fetched(self, name: str, text: str, path: Path) -> str:
        """Return a fetch argument in the kernel's syntax, and record its type. Raises GrammarError."""
        if self.target.kind.on_event:
            return self._on_event(name, text)
        found = _parse(text, self.target)
        if found.expression == "$arg*":
            raise GrammarError("$arg* is many: give each argument a name of its own")
        if found.warning:
            self.report.warn(path, found.warning)
        if found.expression == "$retval" and found.type is None and self.returns:
            # Without a type, kernels differ: 6.1 prints -2 as 0xfffffffffffffffe, 6.12 uses BTF's type.
            found = replace(found, type=self.returns.fetch)
        if found.is_path and found.type is None:
            return found.body  # only the running kernel knows its type
        if self.target.kind is Kind.USDT and found.type is None and "$arg" in text:
            return text  # its notes tell the type
        self.fields[name] = _as_read(found)
        self.compared[name] = _as_read(found) if self.target.is_joined else field_type(found)
        return text if self.target.kind.in_file and "$arg" in text else found.body

    def _on_event(self, name: str, text: str) -> str:
        """Return the name of a tracepoint's field, or memory or a path from one. Raises GrammarError."""
        if text in EITHER:
            return COMMON_COMM if text == "$COMM" else text
        if text in COMMON.keys() - {COMMON_COMM}:
            raise GrammarError(f"every event has {quote(text)}: use this name where it is needed")
        if NAME.fullmatch(text):
            return text
        if not self._is_path(text):
            if not text.startswith(("+", "-")):
                raise GrammarError(
                    "on a tracepoint this is the name of one of its fields, or memory behind one as"
                    f" +8($FIELD):u32, not {quote(text)}"
                )
            found = parse_fetch(text, FetchSite("event"))
            self.fields[name] = _as_read(found)
            if self.target.is_joined:
                self.compared[name] = _as_read(found)
            return found.body
        if self.target.kind is Kind.SYSCALL or self.target.system == "syscalls":
            raise GrammarError(
                "a system call's pointers lead into the program's memory, whose types are not known: read it"
                " as +0($FIELD):ustring or +8($FIELD):u32"
            )
        found = parse_fetch(text)
        if found.type is not None:
            self.fields[name] = _as_read(found)
        return found.body

    def _is_path(self, text: str) -> bool:
        return not self.target.kind.in_file and is_path(inner_path(split_type(text)[0])[1])

    def _checked_filter(self) -> str | None:
        """Check the filter, and return it with the names of the strings that are fetched for it."""
        if self.probe.filter is None:
            return None
        try:
            # The kernel compares no fractions; the agent, which filters calls and pairs, does.
            parsed = parse_filter(self.probe.filter, fractions=self.target.is_joined).rename(self.strings)
        except GrammarError as error:
            self.report(self.places["filter"], self._here(error.message, "filter"), column=error.column)
            return self.probe.filter
        for part in parsed.comparisons:
            if no_time := wrong_time(part, self.compared.get(part.name)):
                self.report(self.places["filter"], self._here(no_time, "filter"), column=part.value_column)
                continue
            why = self._wrong_in_filter(part.name)
            if not why and part.name in self.compared:
                why = wrong_comparison(part, self.compared[part.name])
            if why:
                self.report(self.places["filter"], self._here(why, "filter"), column=part.column)
            elif self.target.is_joined and (odd := odd_duration(part)):
                self.report.warn(self.places["filter"], odd, column=part.column)
        return parsed.render() if self.strings else self.probe.filter

    def _wrong_in_filter(self, name: str) -> str | None:
        kind = self.target.kind
        if (name == "return" and name not in self.fields) or (name == "duration" and self.target.no_return):
            if kind is Kind.TRACEPOINT:
                return "a tracepoint has no 'return' of its own: add fetch: {return: FIELD}"
            entry = self.target.no_return or "this is an entry"
            return f"there is no {name!r} here: {'returns: void' if self.returns else entry}"
        if name in self.absent:
            return f"{name!r} is null here, so nothing can be filtered by it"
        # Only the running kernel knows the names of a tracepoint's own fields.
        usable = {*self.fetch, *self.compared}
        if name in usable or kind is Kind.TRACEPOINT:
            return None
        if not self.target.is_joined and (sentence := _NOT_IN_THE_KERNEL.get(name)):
            return sentence.format(name)
        return no_field(name, usable)


def is_own_field(name: str, text: object) -> bool:
    """Whether a tracepoint's own field is fetched under its name, although that may mean the thread."""
    return name in _SHORT and (text in (name, f"${name}") or (name == "comm" and text in EITHER))


LONG = 300
"""Seconds. A number that large was probably meant in another unit."""


def odd_duration(part: Comparison) -> str | None:
    """Return why a comparison with the duration is probably not meant as it is written."""
    if part.name != DURATION or isinstance(part.value, str):
        return None
    if part.value < 0 or (part.value == 0 and part.operator in ("<", "<=", "==")):
        always = part.operator in (">", ">=", "!=")
        return f"'duration' is above 0, so this is {'always' if always else 'never'} true"
    if part.time or part.value < LONG:
        return None
    text = part.written
    return f"'duration' is in seconds: if they are meant, write {text}s, else {text}ms or {text}us"


def no_field(name: str, usable: Iterable[str]) -> str:
    """Return the sentence that refuses a filter on a field that is not fetched."""
    if name.endswith(USER_STRING):
        field = name.removesuffix(USER_STRING)
        return f"{name!r} is for a tracepoint's fields: fetch +0({field}):ustring, and compare that"
    if name in COMMON_FIELDS:
        return f"{name!r} is not read with an event, so what takes time cannot be filtered by it"
    return f"there is no field {quote(name)} to filter on: fetch it{closest(name, usable)}"


def _in_halves(attach: Attach) -> Attach:
    """Split a call into its entry and its return. The kernel filters only by what is the same at both."""
    enter, leave = attach.target.halves
    early, late = None, None
    if attach.filter is not None:
        # Its name, its CPU and fetched values may change in a call; the thread's id does not.
        parsed = parse_filter(attach.filter, fractions=True)
        early, late = split(parsed, lambda part: part.fields == {"common_pid"})
    in_kernel = early.render() if early else None
    read = attach.target.kind is Kind.SYSCALL and attach.returns is not None and attach.returns.fetch
    returned = {"return": "ret"} if read else {}
    names = {kernel: ours for kernel, ours in AGENT_NAMES.items() if kernel not in attach.fetch}
    return replace(
        attach,
        filter=late.rename(names).render() if late else None,
        begins=(replace(attach, target=enter, filter=in_kernel, returns=None, guessed=False),),
        end=Attach(leave, returned, in_kernel, attach.returns, attach.guessed),
    )


def _numbered(path: Path, texts: Iterable[str]) -> dict[Path, str]:
    return {(*path, index): text for index, text in enumerate(texts)}


def _parse(text: str, target: Target) -> FetchArg:
    """Parse a fetch argument. In a program, the agent itself finds the register of each ``$argN``."""
    if target.kind is Kind.URETPROBE and (argument := _ARGUMENT.search(text)):
        sentence = f"{argument[0]} is gone when the function returns: fetch it on entry"
        raise GrammarError(sentence, text, argument.start())
    return parse_fetch(_ARGUMENT.sub("%di", text) if target.kind.in_file else text, _site(target))


def _site(target: Target) -> FetchSite:
    """Return the fetch site of a target. An entry may be at offset 4, after x86-64's endbr64."""
    if target.kind.in_file:
        return FetchSite("user", returns=target.kind is Kind.URETPROBE)
    if target.kind in (Kind.FENTRY, Kind.FEXIT):
        return FetchSite("function", returns=target.kind is Kind.FEXIT)
    if target.kind is Kind.KRETPROBE:
        return KRETPROBE
    entry = target.offset in (0, 4) and not target.symbol[:1].isdigit()
    return KPROBE._replace(entry=entry or target.symbol in BASES)


def _as_read(arg: FetchArg) -> FieldType:
    """Return the type that the agent reads for an argument: text if the kernel prints it as text."""
    return STRING if arg.value_kind in ("str", "bare", "char") else field_type(arg)
