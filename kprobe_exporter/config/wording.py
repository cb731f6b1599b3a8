"""The wording of problems: each is one line, even if the text that it quotes contains line breaks."""

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kprobe_exporter.grammar.lexis import closest

Path: TypeAlias = tuple[str | int | float, ...]
"""The location of a value in a configuration: keys and list indexes, from the top."""

_MAX_QUOTED = 60
_SECRET_KEYS = frozenset({("otlp",), ("otlp", "headers"), ("basic_auth_users",)})
"""Sections in which a key that is not a plain word may be a secret: `{"authorization: Bearer x"}` is one
key."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,59}")
_SHAPES: Mapping[type, str] = {type(None): "nothing", dict: "a mapping", list: "a list"}


def quote(value: object) -> str:
    """Return a value as a message shows it: escaped, and cut after 60 characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and len(value) > _MAX_QUOTED:
        value = value[:_MAX_QUOTED] + "…"
    # repr() escapes unprintable characters, including surrogates and line breaks.
    return _SHAPES.get(type(value)) or repr(value)


def path_text(path: Path) -> str:
    """Return a path as ``probes[2].metrics[0].labels.errno``, or ``(file)`` for the whole file."""
    text = ""
    for index, step in enumerate(path):
        if isinstance(step, int) and not isinstance(step, bool):
            text += f"[{step}]"
        elif isinstance(step, str) and _PLAIN_KEY.fullmatch(step):
            text += f".{step}"
        else:
            text += f".{key_text(path[:index], step)}"
    return text.removeprefix(".") or "(file)"


def key_text(path: Path, key: object) -> str:
    """Return the key of a mapping as a message shows it, unless it may be a secret."""
    is_plain = isinstance(key, str) and _PLAIN_KEY.fullmatch(key)
    return "(a key that is not shown)" if path in _SECRET_KEYS and not is_plain else quote(key)


def listed(names: Iterable[str]) -> str:
    """Join names for the end of a sentence: ``a, b or c``."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def nearest(name: object, names: Iterable[str]) -> str:
    """Return a suggestion to append to a sentence: the closest name, or all names if at most 16."""
    known = sorted(names)
    if suggestion := closest(str(name)[:_MAX_QUOTED], known):
        return suggestion
    return f", there is {listed(known)}" if 0 < len(known) <= 16 else ""
