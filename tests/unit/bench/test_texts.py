"""The benchmark of texts: rows next to their call, and no figure of events that lack the text."""

import shutil

import pytest

from tests.bench import texts
from tests.bench.checks import Missed
from tests.bench.probes import configured
from tests.bench.texts_guest import CONFIG, ROWS, Row, check_text

ROUNDS = {name: [100.0 + place, 120.0 + 3 * place] for place, name in enumerate(ROWS)}
EVENTS = """\
# tracer: nop
           texts-77      [001] .....    90.1: entry: (syscalls.sys_enter_openat) file="/nonexistent/a"
           texts-77      [001] .....    90.2: entry: (syscalls.sys_enter_openat) file="/nonexistent/a"
            bash-78      [000] .....    90.3: entry: (syscalls.sys_enter_openat) file=(fault)
"""


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.fetch])
def test_configurations(row: Row) -> None:
    [probe] = configured(CONFIG.format(row.call, row.fetch, row.fetch.partition(":")[0])).probes
    assert probe.attach[0].target.event == f"sys_enter_{row.call}"


def test_rows() -> None:
    shown = texts.rows({"6.1": ROUNDS, "6.12": ROUNDS})
    assert [row[0].lstrip("+ ") for row in shown] == [*ROWS]
    assert shown[0] == ("open(2)", "110", "", "110", "")
    assert shown[1][1:] == ("+2", "0.02") * 2
    assert all(len(row) == 5 for row in shown)


def test_names() -> None:
    table = texts.tabulated({"6.1": ROUNDS}, 2000, 30_000.0, 4_000.0)
    assert table.rows[-2:] == (
        ("a name of C++, on this machine", "30,000", ""),
        ("the same by c++filt", "4,000", ""),
    )
    assert any("7.5 times" in note for note in table.notes)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")
def test_names_that_differ_are_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycxxfilt")
    assert len(texts.library_names()) >= texts.MIN_NAMES
    monkeypatch.setattr(texts, "demangled", lambda name: None)
    with pytest.raises(Missed, match="c\\+\\+filt has another text for"):
        texts.library_names()


def test_events_without_the_text_are_no_result() -> None:
    check_text(EVENTS, 'file="/nonexistent/a"')
    with pytest.raises(Missed, match="2 of 2 events lack the text"):
        check_text(EVENTS, 'file="/nonexistent/b"')
    with pytest.raises(Missed, match="20 of 22 events lack"):
        check_text(EVENTS + EVENTS.replace("nonexistent/a", "etc/b") * 10, 'file="/nonexistent/a"')
    with pytest.raises(Missed, match="0 of 0 events"):
        check_text("# tracer: nop\n", "")
