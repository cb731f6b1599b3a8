"""How problems are worded: one line each, whatever the text holds that they quote."""

import re
from collections.abc import Iterable
from typing import TypeAlias

from kprobe_exporter.grammar.lexis import closest

Path: TypeAlias = tuple[str | int | float, ...]
"""Where something is in a configuration: keys and list indexes, from the top."""

_MAX_QUOTED = 60
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,59}")


def quote(value: object) -> str:
    """A value as a message shows it: escaped, and cut where it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        cut = value if len(value) <= _MAX_QUOTED else value[:_MAX_QUOTED] + "…"
        # repr() escapes what does not print, surrogates and line ends among it.
        return repr(cut)
    return repr(value)


def path_text(path: Path) -> str:
    """``probes[2].metrics[0].labels.errno``; ``(file)`` for the whole file."""
    text = ""
    for step in path:
        if isinstance(step, int) and not isinstance(step, bool):
            text += f"[{step}]"
        elif isinstance(step, str) and _PLAIN_KEY.fullmatch(step):
            text += f".{step}"
        else:
            text += f".{quote(step)}"
    return text.removeprefix(".") or "(file)"


def listed(names: Iterable[str]) -> str:
    """Names for the end of a sentence: ``a, b or c``."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def nearest(name: object, names: Iterable[str]) -> str:
    """A suggestion to append to a sentence: the closest name, or all of them where they are few."""
    known = sorted(names)
    if suggestion := closest(str(name)[:_MAX_QUOTED], known):
        return suggestion
    return f", there is {listed(known)}" if 0 < len(known) <= 16 else ""
