"""Fixtures and helpers of the configuration's tests: load one text, and list its problems as lines."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.config.values import Config
from kprobe_exporter.errors import ConfigError

PROBE = "probes: [{name: p, attach: 'kprobe:f'}]\n"


def _refuse_options(options: object) -> None:
    if options is not None:
        raise ValueError("errno takes no options")


def _want_mapping(options: object) -> None:
    if not isinstance(options, dict):
        raise ValueError("map wants a mapping")


DECODERS = {"errno": _refuse_options, "map": _want_mapping}


def marked(text: str) -> tuple[str, str]:
    """Return a text without its mark ``¦``, and the mark's LINE:COLUMN."""
    before, _, after = text.partition("¦")
    return before + after, f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Config]:
    """Return a function that loads one text, and raises ConfigError where it has problems."""

    def run(text: str) -> Config:
        file = tmp_path / "c.yaml"
        file.write_text(text)
        return load([file], DECODERS)

    return run


@pytest.fixture
def problems(config: Callable[[str], Config]) -> Callable[[str], list[str]]:
    """Return a function that lists one text's problems as ``LINE:COLUMN: PATH: MESSAGE``; none if valid."""

    def run(text: str) -> list[str]:
        try:
            config(text)
        except ConfigError as error:
            return [str(one).split("c.yaml:", 1)[1] for one in error.problems]
        return []

    return run
