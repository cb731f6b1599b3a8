"""Replaces `${NAME}` in the strings of `otlp` from the environment, to keep secrets out of files."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kprobe_exporter.config.wording import Path
from kprobe_exporter.config.yaml_source import YamlSource
from kprobe_exporter.errors import Problem

# `$$` stands for one `$`, as in OpenTelemetry's own configuration files.
_DOLLAR = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]{0,127})\})?")

LONE = "a $ begins ${NAME}, a variable of the environment: write $$ for the character itself"


def fill_in(source: YamlSource, top: str, environ: Mapping[str, str]) -> list[Problem]:
    """Replace every ``${NAME}`` in the strings below the key ``top``, and ``$$`` by ``$``.

    A string that cannot be filled in is removed and reported. No problem quotes a value of ``environ``.
    """
    problems: list[Problem] = []
    if isinstance(source.data, dict) and isinstance(written := source.data.get(top), dict):
        source.data[top] = _filled(source, (top,), written, environ, problems)
    return problems


def _filled(
    source: YamlSource,
    path: Path,
    written: Mapping[Any, object],
    environ: Mapping[str, str],
    problems: list[Problem],
) -> dict[Any, object]:
    filled: dict[Any, object] = {}
    for key, value in written.items():
        here = (*path, key)
        if isinstance(value, dict):
            filled[key] = _filled(source, here, value, environ, problems)
        elif not isinstance(value, str):
            filled[key] = value
        elif wrong := list(_wrong(value, environ)):
            problems += (source.problem(here, sentence, column=column) for column, sentence in wrong)
        else:
            filled[key] = _DOLLAR.sub(lambda found: environ[found["name"]] if found["name"] else "$", value)
    return filled


def _wrong(text: str, environ: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield each place that cannot be filled in: its column, from 0, and a sentence."""
    for found in _DOLLAR.finditer(text):
        if found[0] == "$":
            yield found.start(), LONE
        elif (name := found["name"]) and name not in environ:
            yield found.start(), f"the environment has no {name}; set it, for `check` as well as for `run`"
