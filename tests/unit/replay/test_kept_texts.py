"""replay.parser: texts whose values are kept from the first time give what reading them again gives."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.model.records import Layout
from kprobe_exporter.replay import parser as module
from kprobe_exporter.replay.parser import SavedBatch, SavedParser

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURED = sorted(FIXTURES.glob("*/trace_pipe/*.txt"))

BODIES = (
    b"open: (do_sys_open+0x0/0x1) a=1 b=0x2",
    b'open: (do_sys_open+0x0/0x1) a=1 b="x"',
    b'open: (do_sys_open+0x0/0x1) a=1 b="x" a=2',
    b'open: (do_sys_open+0x0/0x1) a="b',
    b"open: (do_sys_open+0x0/0x1) a=10",
    b"back: (g+0x1/0x2 <- f) ret=10",
    b"back: (g+0x1/0x2 <- f) ret=0xfffffffffffffffe",
    b"sys_read(fd: 3, buf: 7ffd, count: 10)",
    b"sys_read -> 0x10",
    b"sched_switch: prev_comm=a b prev_pid=1 ==> next_comm=c",
    b"=1 c=2",
    b"nothing",
)
LINES = st.builds(
    lambda flags, tid, body: b"%16s-%-7d [000] %s 1.000000: %s\n" % (b"cat", tid, flags, body),
    st.sampled_from([b"d..1.", b"d..1"]),
    st.integers(1, 3),
    st.sampled_from(BODIES),
)


def read(text: bytes, size: int) -> tuple[list[SavedBatch], list[Layout]]:
    layouts: list[Layout] = []
    parser = SavedParser(layouts.append)
    batches = [parser.feed(text[at : at + size]) for at in range(0, len(text), size)]
    return [*batches, parser.finish()], layouts


def both(text: bytes, size: int) -> tuple[object, object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONGEST_KEPT", -1)
        again = read(text, size)
    return read(text, size), again


@given(
    st.lists(st.one_of(LINES, LINES, st.sampled_from([b"=1 c=2\n", b"x\n", b"# c\n"])), max_size=60),
    st.integers(1, 400),
)
def test_whatever_comes_again(lines: list[bytes], size: int) -> None:
    kept, again = both(b"".join(lines * 3), size)
    assert kept == again


@pytest.mark.parametrize("file", CAPTURED, ids=lambda file: f"{file.parts[-3]}/{file.name}")
def test_what_kernels_wrote(file: Path) -> None:
    kept, again = both(file.read_bytes() * 3, 1 << 20)
    assert kept == again


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 10)
    parser = SavedParser()
    for number in range(95):
        parser.feed(b"%16s-%-7d [000] d..1. 1.000000: sys_read -> 0x%x\n" % (b"cat", 1, number))
    parser.finish()
    assert 0 < len(parser._read) <= 10
