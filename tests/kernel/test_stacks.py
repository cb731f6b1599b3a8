"""`stack: true` on a kprobe gives each event its frames, as the kernel's own text has them."""

import os
import re

import pytest

from kprobe_exporter.model.records import TID, Batch, Layout, Record
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.source.lines import LineParser
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import install, names_in_use
from tests.kernel.conftest import StartAgent
from tests.support.kernel_ids import kernel_tid
from tests.support.patience import eventually
from tests.support.pipes import drained
from tests.support.provoked_calls import TIMES, getppid
from tests.support.system_calls import entry, function

SYMBOL = function("getppid")
NAME = "stacks_under_test"


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize("source", ["binary", "text"])
def test_events_with_stacks_are_counted_and_nothing_is_unparsed(start_agent: StartAgent, source: str) -> None:
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: getppid
    attach: kprobe:{SYMBOL}
    stack: true
    filter: "common_pid == {kernel_tid()}"
    metrics: [{{counter: getppid_total, labels: {{tid: tid}}}}]
""")
    getppid()
    tid = str(kernel_tid())
    # The first stack loads the kernel's symbols, which takes a while under emulation.
    eventually(lambda: agent.scrape().value("kprobe_getppid_total", tid=tid) == TIMES)
    metrics = agent.scrape()
    assert metrics.value("kprobe_exporter_events_total", probe="getppid") == TIMES
    assert metrics.value("kprobe_exporter_events_lost_total", reason="unparsed") == 0


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize("option", ["", "sym-offset", "sym-addr"])
def test_each_event_gets_the_frames_that_the_kernel_printed(files: MountedTracefs, option: str) -> None:
    text, layout = recorded(files, option)
    blocks = re.findall(rb"<stack trace>\n((?: => .*\n)+)", text)
    assert len(blocks) == TIMES
    whole = LineParser([layout]).feed(text)
    assert [record[TID] for record in whole.records] == [kernel_tid()] * TIMES
    assert whole.unparsed == 0
    assert [record for record, _ in whole.stacks] == whole.records
    for (_, frames), block in zip(whole.stacks, blocks, strict=True):
        assert [b" => " + frame for frame in frames] == block.splitlines()
        assert any(frame.startswith(entry().encode()) for frame in frames)
    assert by_pieces(layout, text) == [(record, frame) for record, frames in whole.stacks for frame in frames]


def by_pieces(layout: Layout, text: bytes) -> list[tuple[Record, bytes]]:
    """Parse text that comes line by line, an event before its stack; return every frame with its record."""
    parser, frames = LineParser([layout]), []
    for line in text.splitlines(keepends=True):
        batch: Batch = parser.feed(line)
        frames += [(record, frame) for record, piece in batch.stacks for frame in piece]
    return frames


def recorded(files: MountedTracefs, option: str) -> tuple[bytes, Layout]:
    """Return what the kernel prints of TIMES calls of this thread, and the layout of their event."""
    layout = Layout(0, "getppid", "getppid", "entry", SYMBOL, stack=True)
    only = f"common_pid == {kernel_tid()}"
    target = f"kprobe:{SYMBOL}"
    spec = ProbeSpec(
        "getppid", "kprobe", target, SYMBOL, "kprobe_events", "p", SYMBOL, only, layout, stack=True
    )
    with Instance.acquire(files, NAME) as instance:
        instance.set_up(1024, record_tgid=False)
        if option:
            instance.write(f"options/{option}", "1")
        probe = install(instance, spec, names_in_use(instance))
        probe.enable()
        getppid()
        probe.disable()
        pipe = instance.open_pipe()
        try:
            text = drained(pipe)
        finally:
            os.close(pipe)
            probe.remove()
    return text, probe.layout
