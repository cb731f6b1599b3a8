"""The functions of a compiled program, and the errors for files that are no programs."""

import os
import re
import sys
from pathlib import Path

import pytest

from kprobe_exporter.errors import GrammarError, ProbeRefused
from kprobe_exporter.grammar.target import Kind, parse_target
from kprobe_exporter.symbols.listing.files import file_places
from kprobe_exporter.symbols.listing.query import Query, parse_query
from tests.support.compiling import compiled

SOURCE = """
int shared(void) { return 1; }
int alone(int x) { return x; }
__attribute__((visibility("default"))) int strange(void) __asm__("\\"go.(*T).f\\"");
int strange(void) { return 2; }
int data = 3;
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("elf") / "lib.so", SOURCE, "-shared", "-fPIC")


def names(query: Query) -> list[str]:
    return [place.symbol for place in file_places(query)]


def test_all_that_an_attach_string_can_hold(library: Path) -> None:
    places = file_places(Query("*", Kind.UPROBE, str(library), "*"))
    assert {"shared", "alone"} <= {place.symbol for place in places}
    assert [str(place) for place in places] == sorted(str(parse_target(str(place))) for place in places)
    assert not any(re.search(r"[()]", place.symbol) for place in places)


def test_a_pattern(library: Path) -> None:
    assert names(parse_query(f"uprobe:{library}:[as]*[!a]")) == ["alone", "shared"]
    [place] = file_places(parse_query(f"uretprobe:{library}:al*"))
    assert str(place) == f"uretprobe:{library}:alone"


def test_one_function_of_a_relative_path(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(library.parent)
    [place] = file_places(Query("alone", Kind.UCALL, "lib.so", "alone"))
    assert str(place) == f"ucall:{library}:alone"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aloen", "has no function 'aloen', did you mean 'alone'?"),
        ("data", "is data, no function."),
        ("al[0-9]*", "; one begins with 'al': alone."),
        ("_nothing_*x", "matches none of the "),
    ],
)
def test_why_not(library: Path, name: str, said: str) -> None:
    with pytest.raises(ProbeRefused) as error:
        file_places(Query(name, Kind.UPROBE, str(library), name))
    assert said in str(error.value)


def test_no_program(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    for path, said in (
        (tmp_path / "gone", "there is no file"),
        (script, "a script"),
        (Path("/a b"), "blank"),
    ):
        with pytest.raises(GrammarError, match=said):
            file_places(Query("*", Kind.UPROBE, str(path), "*"))


def test_this_interpreter() -> None:
    """Each function that is listed can be attached, for any symbol names of this interpreter."""
    path = os.path.realpath(sys.executable)
    for place in file_places(Query("*", Kind.UPROBE, path, "*")):
        assert parse_target(str(place)).path == path
