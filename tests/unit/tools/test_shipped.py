"""The tools that come with this program: each loads, and is a configuration, with each of its options."""

from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.cli.scope import SCOPE_OPTIONS
from kprobe_exporter.config.model import Config
from kprobe_exporter.tools import load as module
from kprobe_exporter.tools.load import FOLDER, load_tool, tool_aliases, tool_names
from kprobe_exporter.tools.tool_model import OptionModel
from kprobe_exporter.trace.emit import read_back
from kprobe_exporter.trace.run_tool import read_tool

SAMPLES: dict[str, Any] = {
    "flag": True,
    "text": "x",
    "number": 4,
    "time": 0.01,
    "size": "4KiB",
    "disk": "8",
    "signal": "TERM",
    "user": "root",
    "address": "127.0.0.1",
    "function": "vfs_write",
    "call": "vfs_write",
}


def sample(option: OptionModel) -> Any:
    """A value of an option: a text is a path here and a name there, as its default is."""
    return option.default if option.type == "text" and option.default else SAMPLES[option.type]


COMMON = {"add", "json", "csv", "duration", "rows", "interval", "timestamp", "stacks", "flame", "verbose"}
COMMON |= SCOPE_OPTIONS.keys()


def options(name: str) -> dict[str, OptionModel]:
    return load_tool(FOLDER / f"{name}.yaml").model.options


@pytest.fixture(autouse=True)
def any_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the samples of disks as their numbers: no disk is on every machine."""
    real = module.kernel_value
    monkeypatch.setattr(
        module, "kernel_value", lambda name, kind, text: text if kind == "disk" else real(name, kind, text)
    )


def configured(name: str, **values: object) -> Config:
    tool = load_tool(FOLDER / f"{name}.yaml", values)
    _, probes = read_tool(tool)
    assert probes
    return read_back(tool.text)


@pytest.mark.parametrize("name", tool_names())
class TestTool:
    def test_is_a_configuration(self, name: str) -> None:
        assert configured(name).warnings == ()

    def test_each_option(self, name: str) -> None:
        for key, option in options(name).items():
            configured(name, **{key: sample(option)})

    def test_all_options_at_once(self, name: str) -> None:
        configured(name, **{key: sample(one) for key, one in options(name).items()})

    def test_names_are_distinct(self, name: str) -> None:
        tool = load_tool(FOLDER / f"{name}.yaml")
        keys = [column.key for column in tool.columns]
        letters = [option.short for option in tool.model.options.values() if option.short]
        assert len({*keys}) == len(keys)
        assert len({*letters}) == len(letters)
        assert not tool.model.options.keys() & COMMON

    def test_sorts_by_a_column(self, name: str) -> None:
        model = load_tool(FOLDER / f"{name}.yaml").model
        assert model.sort is None or model.sort in model.columns

    def test_options_name_probes(self, name: str) -> None:
        names = {probe.name for probe in load_tool(FOLDER / f"{name}.yaml").model.probes}
        assert {probe for one in options(name).values() for probe in one.enables + one.disables} <= names

    def test_aliases(self, name: str) -> None:
        for alias, values in load_tool(FOLDER / f"{name}.yaml").model.aliases.items():
            assert alias not in tool_names()
            assert tool_aliases()[alias] == (FOLDER / f"{name}.yaml", values)
            assert {*values} <= {*options(name)}
            configured(name, **values)

    def test_teaches(self, name: str) -> None:
        """It has an example of itself, and an output."""
        model = load_tool(FOLDER / f"{name}.yaml").model
        assert model.examples
        assert all(one.split()[1] == name for one in model.examples)
        assert model.output.strip()


def test_the_folder() -> None:
    assert Path(FOLDER, "killsnoop.yaml").is_file()
