"""The words for the numbers of labels decoded by ``name``: of a ``print fmt``, or a BTF enum's names."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.config.model import NAMED, Attach, Probe
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import EventFormat
from kprobe_exporter.grammar.fetch import parse_fetch
from kprobe_exporter.grammar.print_words import print_words
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.model.values import Words, enumerator
from kprobe_exporter.plan.typed import ARGUMENT, PARAMETER, Prototypes

INTEGERS = frozenset(
    {"int", "long", "short", "char", "unsigned", "signed", "bool", "size_t", "ssize_t", "loff_t"}
)
_ENUM = "enum "


class FieldWords(NamedTuple):
    """The words for fields of one alternative, and a clause about those without any."""

    words: tuple[tuple[str, Words], ...] = ()
    note: str = ""


def named(way: ProbeSpec | Unsupported, names: FieldWords) -> ProbeSpec | Unsupported:
    """Return a way to attach with the words for its fields."""
    if isinstance(way, Unsupported) or names == FieldWords():
        return way
    because, note = ("; ".join(filter(None, (text, names.note))) for text in (way.because, way.note))
    return replace(way, layout=replace(way.layout, names=names.words), because=because, note=note)


def of_event(
    probe: Probe, form: EventFormat, used: Mapping[str, str], attach: Attach, types: KernelTypes
) -> FieldWords:
    """Return the words for the fields of a tracepoint; ``used`` maps our names to its fields."""

    def look(name: str) -> Words | None:
        if name in attach.read:
            return _of_enum(attach.read[name].type, types)
        return print_words(form, used[name], types.constants) or _of_enum(form.fields[used[name]].type, types)

    return _names(probe, {*used, *attach.read}, look, types)


def of_function(
    probe: Probe, written: Attach, attach: Attach, known: Prototypes, types: KernelTypes
) -> FieldWords:
    """Return the words for the arguments and the return value of a function.

    ``written`` is the alternative as configured, ``attach`` the same with BTF's types.
    """
    prototype = known.get((attach.target.module, attach.target.symbol))
    params = prototype.params if prototype else ()

    def look(name: str) -> Words | None:
        if name in attach.read:
            return _of_enum(attach.read[name].type, types)
        if name == "return":
            return _of_enum(prototype.returns.name, types) if prototype else None
        expression = parse_fetch(written.fetch[name]).expression
        numbered, named = ARGUMENT.fullmatch(expression), PARAMETER.fullmatch(expression)
        for param in params:
            if (numbered and param.number == int(numbered[1])) or (named and param.name == expression):
                return _of_enum(param.type.name, types)
        return None

    returned = {"return"} if attach.returns and attach.returns.fetch else set[str]()
    return _names(probe, {*written.fetch, *returned}, look, types)


def of_program(probe: Probe, attach: Attach, types: KernelTypes) -> FieldWords:
    """Return no words, as a program's types are not known here."""
    return _names(probe, {*attach.fetch, "return"}, lambda name: None, types)


def _names(
    probe: Probe, there: Collection[str], look: Callable[[str], Words | None], types: KernelTypes
) -> FieldWords:
    """Return the words that ``look`` finds for the fields that are ``there``."""
    words: dict[str, Words] = {}
    notes: dict[str, None] = {}
    for field, enum in dict.fromkeys(_wanted(probe)):
        if field not in there:
            continue
        if enum is None and (found := look(field)):
            words[field] = found
        elif enum is None:
            notes[f"the kernel has no names for '{field}', whose numbers are shown"] = None
        elif why := _missing(enum, types):
            notes[f"{why}: the numbers of '{field}' are shown"] = None
    return FieldWords(tuple(words.items()), "; ".join(notes))


def _wanted(probe: Probe) -> Iterator[tuple[str, str | None]]:
    """Yield the fields of labels that ``name`` decodes, each with the enum that is named for it."""
    for label in probe.labels:
        for step in label.decode:
            if step == NAMED:
                yield label.field, None
            elif step.name == NAMED.name and isinstance(step.options, Mapping):
                yield label.field, str(step.options["enum"]).removeprefix(_ENUM)


def _missing(enum: str, types: KernelTypes) -> str:
    try:
        types.enumerators(enum)
    except GrammarError as error:
        return error.message
    return ""


def _of_enum(type_: str, types: KernelTypes) -> Words | None:
    """Return the names of an enum as words; None for another type."""
    name = type_.removeprefix("const ").removeprefix(_ENUM)
    if not name.isidentifier() or name in INTEGERS:
        return None
    names = types.words(name)
    return partial(enumerator, names) if names else None
