"""Checks expressions, of ``let``, ``where`` and ``value``, against the fields of a probe's alternatives."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from kprobe_exporter.config.model import Label
from kprobe_exporter.config.sites import BUILT_IN, Alternatives, odd_duration
from kprobe_exporter.config.wording import Path, listed, quote
from kprobe_exporter.config.yaml_source import Report
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.evaluate import COMPUTED, STRING, wrong_types
from kprobe_exporter.grammar.formula import Name, Operation
from kprobe_exporter.grammar.formula_parser import inserted, parse_formula
from kprobe_exporter.grammar.lexis import NAME, closest
from kprobe_exporter.grammar.target import Kind, Target
from kprobe_exporter.model.records import STACK_POINTER

OF_TEXT = frozenset({"map", "regexp"})
"""Decoders of texts. A field that the others decode is a number."""

EXIT_CODE = (
    "it is a fact for labels, and an expression needs kprobe:do_exit with "
    """fetch: {exit_code: "$arg1:s32"}"""
)
"""The advice for the code with which a thread ends, in the form of wait(2) (do_exit() of kernel/exit.c)."""


def with_lets(lets: Mapping[str, str], alternatives: Alternatives, report: Report) -> Alternatives:
    """Check a probe's ``let``, and return its alternatives with these fields too.

    Problems go to ``report``, by paths within ``let``.
    """
    found = tuple(
        one._replace(fields={**one.fields, **dict.fromkeys(lets, COMPUTED)}) for one in alternatives
    )
    sound = True
    for name, text in lets.items():
        if name in BUILT_IN or name == STACK_POINTER:
            report((name,), f"{name!r} is a built-in field: choose another name", at_key=True)
        elif any(name in one.fields for one in alternatives):
            report((name,), f"{name!r} is fetched already: choose another name", at_key=True)
        elif isinstance(parse_formula(text), Name):
            report((name,), f"this is another name of {text.strip()!r} only: use that")
        elif check_expression(text, (name,), found, report):
            continue
        sound = False
    if sound:
        try:
            inserted(lets)
        except GrammarError as error:
            report((error.text,), error.message)
    return found


def fields_read(name: str, lets: Mapping[str, str]) -> frozenset[str]:
    """Return the fields that a name means: those with which its ``let`` computes, or the name itself."""
    try:
        trees = inserted(lets)
    except GrammarError:  # with_lets reports it
        return frozenset()
    return trees[name].fields if name in trees else frozenset({name})


def labels_meant(text: str, labels: Iterable[Label], alternatives: Alternatives) -> frozenset[str]:
    """Return the names in a metric's ``where`` that mean its labels.

    A name is a field if an alternative has that. But a label that is decoded from a number wins if it is
    compared with a text, as in ``reason == "NO_SOCKET"``. A number never equals a text.
    """
    try:
        tree = parse_formula(text)
    except GrammarError:  # check_expression reports it
        return frozenset()
    names = [node.name for node in tree.names]
    with_texts = [part.name for part in tree.comparisons if isinstance(part.value, str)]
    texts = {name for name in names if names.count(name) == with_texts.count(name)}
    return frozenset(
        label.name
        for label in labels
        if label.name in names
        and (
            not any(label.name in one.fields for one in alternatives)
            or (label.name in texts and label.decode and label.decode[0].name not in OF_TEXT)
        )
    )


def with_labels(names: Collection[str], alternatives: Alternatives) -> Alternatives:
    """Return the alternatives with these labels in place of fields of their names; a label is a text."""
    return tuple(one._replace(fields={**one.fields, **dict.fromkeys(names, STRING)}) for one in alternatives)


def check_expression(text: str, path: Path, alternatives: Alternatives, report: Report) -> bool:
    """Check an expression; return whether it is right. Problems go to ``report``."""
    try:
        tree = parse_formula(text)
    except GrammarError as error:
        report(path, error.message, column=error.column)
        return False
    equal = [
        node.operands[1].start
        for node in tree.walk()
        if isinstance(node, Operation) and node.operator == "=="
    ]
    wrong = {
        node.column: f"{why}; a string is put in quotes" if node.column in equal else why
        for node in tree.names
        if (why := missing_field(node.name, alternatives))
    }
    for one in alternatives if not wrong else ():
        at = f" (at {one.attach.target})" if len(alternatives) > 1 else ""
        for column, why in wrong_types(tree, one.fields):
            wrong.setdefault(column, f"{why}{at}")
    for column, why in wrong.items():
        report(path, why, column=column)
    for part in tree.comparisons if not wrong else ():
        if odd := odd_duration(part):
            report.warn(path, odd, column=part.column)
    return not wrong


def _with_return(target: Target) -> str:
    """Return a clause: where a probe at ``target`` would find a return value."""
    if target.kind is Kind.TRACEPOINT:
        return "name the field that holds it, as fetch: {return: FIELD}"
    kinds = {
        Kind.KPROBE: (Kind.KRETPROBE, Kind.CALL),
        Kind.UPROBE: (Kind.URETPROBE, Kind.UCALL),
        Kind.FENTRY: (Kind.FEXIT, Kind.CALL),
    }.get(target.kind)
    if kinds is None:
        return "`returns: void` says that the function has none"
    return f"this is an entry, attach {listed(str(replace(target, kind=kind)) for kind in kinds)} instead"


def _fetched(name: str, target: Target, *, several: bool) -> str:
    """Return a clause: how a probe gets the field ``name``, if a field can have that name."""
    if not NAME.fullmatch(name):
        return ""
    if several:
        return ": every alternative must yield it, see `fetch`"
    source = name if target.kind is Kind.TRACEPOINT else "$arg1"
    return f": fetch it, as in fetch: {{{name}: {source}}}"


def missing_field(name: str, alternatives: Alternatives) -> str | None:
    """Return the sentence for a missing field, if an alternative does not yield it."""
    lacking = [one.attach.target for one in alternatives if name not in one.fields]
    if not lacking:
        return None
    for target in lacking:
        if name in ("duration", "return") and target.no_return:
            return f"there is no {quote(name)} at {target}: {target.no_return}"
    without = [*map(str, lacking)]
    if name == "duration":
        return f"there is no 'duration' at {listed(without)}: only a call or a pair takes time"
    if name == "return":
        return f"there is no field 'return' at {listed(without)}: {_with_return(lacking[0])}"
    if name == "exit_code":
        return f"there is no 'exit_code' at {listed(without)}: {EXIT_CODE}"
    known = {field for one in alternatives for field in one.fields} - {name}
    hint = closest(name, known) or _fetched(name, lacking[0], several=len(alternatives) > 1)
    return f"there is no field {quote(name)} at {listed(without)}{hint}"
