"""replay.replay: no name in the text reaches a terminal with what controls it."""

from pathlib import Path

import pytest

from kprobe_exporter.cli.replay import shown
from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.replay.replay import Replay

CONFIG = """
probes:
  - name: open
    attach: kprobe:do_sys_openat2
    fetch: {file: '+0($arg2):string'}
    metrics:
      - {counter: opens_total, labels: {file: {field: file, decode: {regexp: '(.*)'}}, comm: comm}}
"""
ATTACKS = (
    b"\x1b]0;title\x07",
    b"\x1b[2J",
    "\x9b2J".encode(),
    "\u202egnp.exe".encode(),
    "\u2066\u2028\x85".encode(),
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_name_steers_a_terminal(tmp_path: Path, attack: bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    run = Replay(load([path], DECODERS))
    where = b"-123   [000] d..1.  1.000001: "
    run.feed(
        b"%16s" % attack[:15] + where + b'open: (do_sys_openat2+0x0/0x10) file="/a' + attack + b'"\n'
        b"            bash" + where + b"vfs" + attack + b"read+0x0/0x10: arg1=1\n"
    )
    run.finish()
    metrics = run.metrics().decode()
    assert "kprobe_opens_total{" in metrics
    assert metrics.replace("\n", "").isprintable()
    assert shown(run.summary).replace("\n", "").isprintable()


def test_largest_value_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "probes: [{name: made, attach: 'kretprobe:f', returns: int, worst: {by: return, keep: [comm]}}]"
    )
    replay = Replay(load([path], DECODERS))
    for value in (3, 11, -2, 7):
        replay.feed(b"  cat-7  [000] d..2.  1.000000: made: (sys_open+0x1/0x2 <- f) ret=%d\n" % value)
    replay.finish()
    assert b'kprobe_worst_value{by="return",probe="made"} 11.0\n' in replay.metrics()
