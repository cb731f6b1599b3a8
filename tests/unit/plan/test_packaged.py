"""What the packaged configuration is planned as on kernels that tell more or less of an event."""

import itertools
import re

import pytest

from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import Kernel, plan_probe
from tests.support.kernel_formats import saved

NAMED = saved("6.12")["tracefs/events/oom/mark_victim/format"].decode()
LATER = r"comm|total_vm|\w*_rss|uid|pgtables|oom_score_adj"
BARE = re.sub(rf"(?m)^\tfield:[^;]* (?:{LATER})(?:\[\])?;.*\n", "", NAMED)


@pytest.mark.parametrize(("text", "arguments"), [(NAMED, {"victim", "name"}), (BARE, {"victim"})])
def test_the_victim_has_a_name_where_the_kernel_tells_it(text: str, arguments: set[str]) -> None:
    """`comm` would be another thread's name, where the event has none."""
    [probe] = [one for one in load([DEFAULT], DECODERS).probes if one.name == "oom_kill"]
    kernel = Kernel(lambda system, event: text, counts_tracepoints=True, binary=True)
    plan = plan_probe(probe, "kprobe", DECODERS, kernel, itertools.count())
    spec = next(one for one in plan.alternatives if isinstance(one, ProbeSpec))
    assert arguments <= {arg.name for arg in spec.layout.args} | spec.layout.absent
    assert ("name" in spec.layout.absent) == ("name" not in arguments)
