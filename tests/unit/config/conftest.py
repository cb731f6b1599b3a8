"""Fixtures and helpers of the configuration's tests: load texts, and list their problems as lines."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Config
from kprobe_exporter.errors import ConfigError
from kprobe_exporter.labels import name, process, usym

Load = Callable[[str], Config]
Problems = Callable[[str], list[str]]
Refused = Callable[[str, str], None]

PROBE = "probes: [{name: p, attach: 'kprobe:f'}]\n"


def _refuse_options(options: object) -> None:
    if options is not None:
        raise ValueError("errno takes no options")


def _want_mapping(options: object) -> None:
    if not isinstance(options, dict):
        raise ValueError("map wants a mapping")


DECODERS = {
    **process.DECODERS,
    "errno": _refuse_options,
    "map": _want_mapping,
    "name": name.decoder,
    "usym": usym.decoder,
}


def marked(text: str) -> tuple[str, str]:
    """Return a text without its mark ``¦``, and the mark's LINE:COLUMN."""
    before, _, after = text.partition("¦")
    return before + after, f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def load_files(directory: Path, environ: Mapping[str, str] | None = None, **files: str | None) -> Config:
    """Load texts as the files NAME.yaml, in this order; None is a file that is missing."""
    paths = [directory / f"{name}.yaml" for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        if text is not None:
            path.write_text(text)
    return load(paths, DECODERS, environ or {})


def refusals(directory: Path, environ: Mapping[str, str] | None = None, **files: str | None) -> list[str]:
    """Return the problems of such files, as ``NAME.yaml:LINE:COLUMN: PATH: MESSAGE``."""
    with pytest.raises(ConfigError) as caught:
        load_files(directory, environ, **files)
    return [str(problem).replace(f"{directory}/", "") for problem in caught.value.problems]


@pytest.fixture
def config(tmp_path: Path) -> Load:
    """Return a function that loads one text, and raises ConfigError where it has problems."""

    def run(text: str) -> Config:
        file = tmp_path / "c.yaml"
        file.write_text(text)
        return load([file], DECODERS)

    return run


@pytest.fixture
def problems(config: Load) -> Problems:
    """Return a function that lists one text's problems as ``LINE:COLUMN: PATH: MESSAGE``; none if valid."""

    def run(text: str) -> list[str]:
        try:
            config(text)
        except ConfigError as error:
            return [str(one).split("c.yaml:", 1)[1] for one in error.problems]
        return []

    return run


@pytest.fixture
def refused(problems: Problems) -> Refused:
    """Return a function that asserts that a text has one problem, at its mark, which begins as given."""

    def run(text: str, expected: str) -> None:
        text, place = marked(text)
        [problem] = problems(text)
        assert problem.startswith(f"{place}: {expected}")

    return run


@pytest.fixture
def refused_probe(refused: Refused) -> Refused:
    """Return a function that asserts the same of the keys of a probe; the message begins with their path."""

    def run(rest: str, expected: str) -> None:
        refused(f"probes: [{{name: p, {rest}}}]", f"probes[0].{expected}")

    return run


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of one file for all examples of a property."""
    return tmp_path_factory.mktemp("scratch") / "c.yaml"
