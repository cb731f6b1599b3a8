"""The argument list of a probe definition: parsed, named, and checked for number and size."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kprobe_exporter.grammar.expression import FetchSite
from kprobe_exporter.grammar.fetch import LONGEST_NAME, RESERVED, FetchArg, check_name, parse_fetch
from kprobe_exporter.grammar.lexis import NAME, fail, part_of

MOST_ARGS = 128
"""MAX_TRACE_ARGS of kernel/trace/trace_probe.h. Linux 6.1 drops further arguments without an error."""

MOST_BYTES = 3072
"""Bytes of all values of one event: MAX_PROBE_EVENT_SIZE of kernel/trace/trace_probe.h."""


class Word(NamedTuple):
    """One word of a line, with the column where it begins."""

    text: str
    column: int


def parse_arguments(
    words: list[Word], site: FetchSite, text: str
) -> tuple[tuple[FetchArg, ...], tuple[str, ...]]:
    """Return the arguments and the warnings about translated ones; raises GrammarError for ``text``."""
    args: list[FetchArg] = []
    warnings: list[str] = []
    for number, word in enumerate(words, 1):
        with part_of(text, word.column):
            if site.returns and word.text.rpartition("=")[2] == "ra":
                warnings.append("ra is left out, each return shows its caller")
                continue
            arg = _parse_argument(word.text, number, site)
            args.append(arg)
            check_arguments(args)
        if arg.warning:
            warnings.append(arg.warning)
    return tuple(args), tuple(warnings)


def _parse_argument(word: str, number: int, site: FetchSite) -> FetchArg:
    name, equals, body = word.partition("=")
    if not equals:
        arg = parse_fetch(word, site)
        return _named(arg, word.partition(":")[0], number)
    if not name:
        fail("the argument's name is missing before '='", word)
    check_name(name)
    with part_of(word, len(name) + 1):
        if body.startswith("$arg*"):
            fail("$arg* is many arguments, it takes no name", body)
        return parse_fetch(body, site, name=name)


def _named(arg: FetchArg, written: str, number: int) -> FetchArg:
    """Name an unnamed argument as generate_probe_arg_name() of kernel/trace/trace_probe.c does."""
    if arg.expression == "$arg*":
        return arg
    own = NAME.fullmatch(written) and len(written) <= LONGEST_NAME and written not in RESERVED
    name = written if own else f"arg{number}"
    return FetchArg(name, arg.expression, arg.type, arg.count, arg.needs, arg.warning)


def check_arguments(args: Sequence[FetchArg]) -> None:
    """Raise GrammarError if one event cannot hold all these arguments."""
    if len(args) > MOST_ARGS:
        fail(f"a probe can have {MOST_ARGS} arguments", "")
    name, times = Counter(arg.name for arg in args).most_common(1)[0] if args else ("", 0)
    if times > 1:
        fail(f"two arguments are called {name or '$arg*'!r}, rename one", name)
    if sum(arg.size * (arg.count or 1) for arg in args) > MOST_BYTES:
        fail(f"the arguments together take more than {MOST_BYTES} bytes, shorten an array", "")
