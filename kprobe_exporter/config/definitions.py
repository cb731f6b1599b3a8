"""Probes that are given as the kernel's probe definition, converted into equivalent ones with keys."""

import re
from collections.abc import Iterator, Mapping

from kprobe_exporter.config.fields import PATTERNS, PROBE_NAME
from kprobe_exporter.config.schema import ProbeModel
from kprobe_exporter.config.sites import BUILT_IN, EITHER, is_own_field
from kprobe_exporter.config.yaml_source import Report
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.definition import Definition, ProbeKind, parse_definition
from kprobe_exporter.grammar.fetch import FetchArg
from kprobe_exporter.grammar.place import Address, EventName, FileOffset, Place, Symbol
from kprobe_exporter.grammar.target import Kind, Target

_KINDS = {
    ProbeKind.KPROBE: (Kind.KPROBE, Kind.KRETPROBE),
    ProbeKind.FPROBE: (Kind.FENTRY, Kind.FEXIT),
    ProbeKind.UPROBE: (Kind.UPROBE, Kind.URETPROBE),
}
"""For each kind of definition, the target's kind on entry and on return."""


def wrong_keys(probe: Mapping[object, object]) -> Iterator[tuple[str, str]]:
    """Yield the keys for the target and the name that are missing or conflict, each with a sentence."""
    given = [key for key in ("attach", "definition") if probe.get(key) is not None]
    if len(given) > 1:
        yield "definition", "a probe has `attach` or `definition`, and not both: keep one"
    if not given:
        yield "attach", "the key 'attach' is missing"
    if probe.get("name") is None and "definition" not in given:
        yield "name", "the key 'name' is missing"


def name_of(definition: Definition) -> str:
    """Return the name of the probe: the event's, or one derived from the place as the kernel does."""
    default = definition.default_event or f"p_{definition.place}"
    return definition.event or re.sub("[^a-z0-9_]", "_", default.lower())[:40]


def defined_name(line: object) -> str | None:
    """Return the name of the probe, or None if the line is not a valid definition."""
    try:
        return name_of(parse_definition(line)) if isinstance(line, str) else None
    except GrammarError:
        return None


class DefinitionReader:
    """Converts the definition of a probe to its other keys. Problems go to ``report``."""

    def __init__(self, probe: ProbeModel, line: str, report: Report) -> None:
        self.probe, self.line, self.report = probe, line, report
        self.definition = parse_definition(line)
        self.on_event = self.definition.kind is ProbeKind.EPROBE

    def probe_and_target(self) -> tuple[ProbeModel, Target | None]:
        """Check the definition. Return the probe with its other keys, and the definition's target.

        The target is None if this version cannot probe it.
        """
        definition, probe = self.definition, self.probe
        target, name = self._target(definition.place), self._name()
        if target is None:
            return probe.model_copy(update={"name": name}), None
        for warning in definition.warnings:
            self.warn(warning, warning.split()[0])
        if definition.group is not None:
            self.warn(f"the group {definition.group!r} is ignored: the agent has its own", definition.group)
        if definition.filter and probe.filter:
            self.report(("filter",), "the definition has a filter already, after its `if`: keep one")
        if definition.maxactive and probe.maxactive:
            self.report(("maxactive",), f"the definition says {definition.maxactive} already: keep one")
        keys = {
            "name": name,
            "fetch": {**dict(self._arguments()), **(probe.fetch or {})},
            "filter": probe.filter or (definition.filter and definition.filter.render()),
            "maxactive": definition.maxactive or probe.maxactive,
        }
        return probe.model_copy(update=keys), target

    def warn(self, message: str, word: str) -> None:
        """Warn that ``word`` of the line is read differently than it is written."""
        self.report.warn(("definition",), message, column=self._column(word))

    def wrong(self, message: str, word: str) -> None:
        """Refuse ``word`` of the line."""
        self.report(("definition",), message, column=self._column(word))

    def _column(self, word: str) -> int:
        found = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", self.line)
        return found.start() if found else 0

    def _name(self) -> str:
        if self.probe.name is not None:
            return self.probe.name
        name = name_of(self.definition)
        if not re.fullmatch(PROBE_NAME, name):
            self.wrong(f"{name!r} cannot be a probe's name, {PATTERNS[PROBE_NAME]}: add a `name`", name)
        return name

    def _target(self, place: Place) -> Target | None:
        if self.definition.kind is ProbeKind.TPROBE:
            self.wrong("attach to the tracepoint by `attach: tracepoint:SYSTEM:EVENT` instead", self.line)
            return None
        kind = _KINDS.get(self.definition.kind, _KINDS[ProbeKind.KPROBE])[self.definition.returns]
        match place:
            case FileOffset(ref_counter=int()):
                self.wrong("the counter of a place's users is left to the program: take it out", str(place))
            case FileOffset(path=path, offset=offset):
                return Target(kind, path=path, offset=offset)
            case Symbol(name=name, module=module, offset=offset):
                return Target(kind, module, name, offset)
            case Address() if self.definition.returns:
                self.wrong("what is returned at an address is not known: name the function", str(place))
            case Address():
                return Target(kind, symbol=str(place))
            case EventName(system=system, event=event):
                return Target(Kind.TRACEPOINT, system=system, event=event)
        return None

    def _arguments(self) -> Iterator[tuple[str, str]]:
        """Yield NAME and fetch argument; for an event probe, NAME and field."""
        for arg in self.definition.args:
            name = arg.name
            if name == "comm" and arg.expression.lower() == "$comm" and not self.on_event:
                continue  # every event has it
            if arg.expression == "$arg*":
                self.wrong("$arg* is many: give each argument a name of its own", "$arg*")
            elif name in BUILT_IN and not (
                self.on_event and (name == "return" or is_own_field(name, arg.expression))
            ):
                self.wrong(f"{name!r} is a built-in field: choose another name", name)
            elif name in (self.probe.fetch or {}):
                sentence = "the definition has an argument of this name: choose another"
                self.report(("fetch", name), sentence, at_key=True)
            elif not self.on_event:
                yield name, arg.body
            else:
                yield name, self._field(arg)

    def _field(self, arg: FetchArg) -> str:
        """Return the event's field that is fetched, whose type is the event's own, or memory behind one."""
        if arg.expression in EITHER:
            return arg.expression
        field = arg.expression.removeprefix("$")
        if not re.fullmatch(r"\w+", field):
            return arg.body
        if arg.type:
            self.warn(f"{arg.expression} is read by the event's own type, and not as {arg.type}", arg.body)
        return field
