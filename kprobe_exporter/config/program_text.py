"""Strings in a program's memory, as `fetch` and filters name them, in the kernel's own spelling."""

from collections.abc import Mapping
from contextlib import suppress

from kprobe_exporter.config.fields import Fetched, ProgramText
from kprobe_exporter.config.wording import quote
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.filter import USER_STRING, parse_filter
from kprobe_exporter.grammar.lexis import NAME
from kprobe_exporter.grammar.target import Target


def spelled(written: str | ProgramText, target: Target) -> str:
    """Return the fetch argument that reads text of a program. Raises GrammarError for another target."""
    if isinstance(written, str):
        return written
    name = written.string or written.strings or ""
    if not target.enters_system_call:
        raise GrammarError(
            "only a system call's arguments are known to point into the program's memory: write"
            f" +0({name}):ustring, or +0({name}):string for the kernel's memory"
        )
    if not NAME.fullmatch(name):
        raise GrammarError(f"{quote(name)} cannot name an argument: write its name, such as filename")
    return f"{_string(name)}[{written.max}]" if is_vector(written) else _string(name)


def is_vector(written: Fetched) -> bool:
    """Return whether it is an array of strings that become one text."""
    return isinstance(written, ProgramText) and written.strings is not None


def filtered_strings(text: str | None, fetch: Mapping[str, Fetched], target: Target) -> dict[str, str]:
    """Return the words ``FIELD.ustring`` of a tracepoint's filter, each with the name of a fetched string.

    An eprobe's filter does not follow pointers, so each string is fetched, as one of ``fetch`` or under a
    name of its own.
    """
    names: dict[str, str] = {}
    if text is None or not target.kind.on_event:
        return names
    with suppress(GrammarError):  # the check of the filter reports it
        for word in sorted(parse_filter(text, fractions=target.is_joined).fields):
            field = word.removesuffix(USER_STRING)
            if field != word:
                same = (name for name, written in fetch.items() if _reads(written, field))
                names[word] = next(same, _free_name(f"{field}_ustring", fetch))
    return names


def string_behind(word: str) -> str:
    """Return the fetch argument for a word ``FIELD.ustring`` of a filter."""
    return _string(word.removesuffix(USER_STRING))


def _free_name(name: str, taken: Mapping[str, Fetched]) -> str:
    return name if name not in taken else _free_name(f"{name}_", taken)


def _string(field: str) -> str:
    return f"+0(${field}):ustring"


def _reads(written: Fetched, field: str) -> bool:
    return written == _string(field) or (isinstance(written, ProgramText) and written.string == field)
