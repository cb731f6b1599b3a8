"""No regular expression repeats a group possessively, which CPython 3.11.0 to 3.11.4 get wrong."""

import re
from pathlib import Path

import kprobe_exporter
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.values import Arg
from kprobe_exporter.source.lines import LineParser

PACKAGE = Path(kprobe_exporter.__file__).parent
POSSESSIVE_GROUP = re.compile(r"(?<![\\(])\)[*+?]\+")


def test_no_group_is_repeated_possessively() -> None:
    """It matched where it must not (github.com/python/cpython, gh-106052 and gh-100061), so that texts were
    None with Debian 12's Python 3.11.2. An atomic group ``(?>(?:…)*)`` is right in all versions."""
    assert POSSESSIVE_GROUP.search(r"(?:ab?c)*+")
    found = {str(path): POSSESSIVE_GROUP.findall(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {path: patterns for path, patterns in found.items() if patterns} == {}


def test_two_texts_of_a_program() -> None:
    """Both were None with Python 3.11.2."""
    args = (Arg("first", "str"), Arg("second", "str"))
    layout = Layout(7, "p", "p", "entry", "f", args, None, user=True)
    head = b"             app-310     [001] DNZff    19.448742: p: (0x40113b) "
    [record] = LineParser([layout]).feed(head + b'first="hello world" second="hello world"\n').records
    assert record[-2:] == (b"hello world", b"hello world")
