"""What a kernel lacks is bridged: without hist triggers and eprobes the same configuration counts alike."""

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.tracefs import probes
from kprobe_exporter.tracefs.define import DefinedEvent, define
from kprobe_exporter.tracefs.hist_tables import HitCounter
from kprobe_exporter.tracefs.instance import Instance
from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.dry_runs import compare, look
from tests.support.kernel_ids import kernel_tid
from tests.support.patience import eventually
from tests.vm.kernels import HIST

SIZES = (0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 255, 256, 257, 4096, 4097, 65536)


def reads_and_failures() -> None:
    device, directory = os.open("/dev/zero", os.O_RDONLY), os.open("/", os.O_RDONLY)
    for size in SIZES:
        os.read(device, size)
    for _ in range(3):
        with pytest.raises(IsADirectoryError):
            os.read(directory, 10)
    os.close(device)
    os.close(directory)


def settled(agent: AgentProcess, name: str, expected: float, **labels: str) -> Metrics:
    """Return a scrape in which a sample has this value; the kernel's own counts are read now and then."""
    eventually(lambda: agent.scrape().value(name, **labels) == expected)
    return agent.scrape()


def test_the_agent_adds_up_what_hist_triggers_would(
    start_agent: StartAgent, other: ThreadPoolExecutor, tracefs: Path, tmp_path: Path
) -> None:
    """Both plans show the same; without hist triggers, `aggregate: kernel` is the plan `events`."""
    probe = """
  - name: {name}
    attach: tracepoint:syscalls:sys_exit_read
    fetch: {{return: ret}}
    returns: ssize_t
    aggregate: {name}
    filter: "common_pid == {tid}"
    return_buckets: [0, 1, 4, 16, 256, 4096]
    metrics:
      - {{histogram: {name}_bytes, value: return, labels: [tid], buckets: [0, 1, 4, 16, 256, 4096]}}
      - {{counter: {name}_sum_total, value: return, scale: 512, labels: [comm]}}
      - {{counter: {name}_calls_total, where: "return != 17", labels: {{returned: return}}}}
"""
    tid = other.submit(kernel_tid).result()
    text = "probes:" + "".join(probe.format(name=name, tid=tid) for name in ("kernel", "events"))
    (tmp_path / "both.yaml").write_text(text)
    rows = look(tmp_path / "both.yaml")
    agent = start_agent(text)
    compare(rows, agent.scrape())
    other.submit(reads_and_failures).result()
    metrics = settled(agent, "kprobe_return_errors_total", 3, probe="kernel", errno="EISDIR")

    def shown(name: str) -> dict[str, float]:
        found = {}
        for (sample, labels), value in metrics.items():
            of = dict(labels)
            if of.get("probe") == name and sample.startswith(("kprobe_return", "kprobe_exporter_events")):
                found[f"{sample} {sorted({**of, 'probe': ''}.items())}"] = value
            elif sample.startswith(f"kprobe_{name}_"):
                found[f"{sample.removeprefix(f'kprobe_{name}')} {sorted(of.items())}"] = value
        return found

    assert shown("kernel") == shown("events")
    assert metrics.total("kprobe_kernel_bytes_sum") == sum(SIZES) - 3 * 21
    assert metrics.total("kprobe_kernel_calls_total") == len(SIZES) + 3 - 1
    hist = has(HIST)
    (info,) = [labels for labels in metrics.labels("kprobe_info") if labels["probe"] == "kernel"]
    assert info["plan"] == rows[0]["plan"] == ("kernel" if hist else "events")
    because = "aggregate: kernel" if hist else "this kernel has no hist triggers (CONFIG_HIST_TRIGGERS)"
    assert rows[0]["why"][0].startswith(because)
    assert because in agent.get("/")


DROPS = """
probes:
  - name: drops
    attach:
      - {to: "tracepoint:skb:kfree_skb", fetch: {protocol: protocol, reason: reason}}
      - {to: "tracepoint:skb:kfree_skb", fetch: {protocol: protocol, reason: null}}
    aggregate: kernel
    metrics:
      - counter: drops_total
        labels: {protocol: {field: protocol, decode: hex}, reason: {field: reason, decode: hex}}
"""


def test_a_field_that_came_later_is_an_empty_label_before(start_agent: StartAgent, tracefs: Path) -> None:
    """The tracepoint skb:kfree_skb has the field `reason` since Linux 5.17."""
    has_reason = "reason" in (tracefs / "events/skb/kfree_skb/format").read_text()
    agent = start_agent(DROPS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(23):  # no program listens at this port, so each datagram is dropped
            with suppress(ConnectionRefusedError):
                sender.sendto(b"x", ("127.0.0.1", 9))
    eventually(lambda: agent.scrape().total("kprobe_drops_total", protocol="0x800") >= 20)
    metrics = agent.scrape()
    assert all(bool(labels["reason"]) == has_reason for labels in metrics.labels("kprobe_drops_total"))
    assert not metrics.total("kprobe_exporter_decode_failures_total")


SIGNALS = "tracepoint:signal:signal_generate"
FIRST, SECOND, OTHER = signal.SIGURG, signal.SIGWINCH, signal.SIGCONT  # ignored, unless there is a handler
ALL = f"""
  - name: all
    attach: "{SIGNALS}"
    fetch: {{sig: sig}}
    metrics: [{{counter: all_total, labels: [sig]}}]
"""


def sharing(tid: int) -> str:
    """Return three probes that read one tracepoint: two with filters, and a pair of two of its events."""
    only = [f'filter: "sig == {number} && common_pid == {tid}"' for number in (FIRST, SECOND)]
    halves = [f'{{to: "{SIGNALS}", {one}}}' for one in only]
    return f"""probes:
  - name: first
    attach: "{SIGNALS}"
    {only[0]}
    metrics: [{{counter: first_total, labels: [tid]}}]
  - name: second
    attach: "{SIGNALS}"
    {only[1]}
    fetch: {{number: sig}}
    metrics: [{{counter: second_sum_total, value: number}}]
  - name: between
    attach: {{pair: {{from: {halves[0]}, to: {halves[1]}, key: tid}}}}
"""


def send() -> None:
    for number in [*[FIRST, SECOND] * 13, *[FIRST] * 10, *[OTHER] * 7]:
        os.kill(os.getpid(), number)


def lacking(monkeypatch: pytest.MonkeyPatch, *lacks: str) -> None:
    """Have the next agents see a kernel without these features."""
    if "eprobes" in lacks:

        def without_eprobes(instance: Instance, spec: ProbeSpec, taken: set[str]) -> DefinedEvent:
            if spec.verb == "e":
                raise ProbeRefused("no eprobes, for a test.")
            return define(instance, spec, taken)

        monkeypatch.setattr(probes, "define", without_eprobes)
    if "hist" in lacks:
        monkeypatch.setattr(Instance, "counts_tracepoints", lambda self: False)
        monkeypatch.setattr(HitCounter, "attach", classmethod(lambda cls, instance, event: None))


@pytest.mark.parametrize("more", ["", ALL], ids=["filtered", "with all"])
@pytest.mark.parametrize("lacks", [(), ("eprobes",), ("eprobes", "hist")], ids=" ".join)
def test_probes_with_different_filters_share_a_tracepoint(
    start_agent: StartAgent,
    other: ThreadPoolExecutor,
    tracefs: Path,
    monkeypatch: pytest.MonkeyPatch,
    lacks: tuple[str, ...],
    more: str,
) -> None:
    """Each has its own events and all the hits, with an eprobe of its own or without."""
    lacking(monkeypatch, *lacks)
    tid = other.submit(kernel_tid).result()
    agent = start_agent(sharing(tid) + more)
    before = agent.scrape()
    names = ["first", "second", "between", *(["all"] if more else [])]
    assert [before.value("kprobe_up", probe=name) for name in names] == [1] * len(names)
    own = Path(tracefs, "instances/kprobe_exporter/events/signal/signal_generate")
    hist = "hist" not in lacks and (own / "hist").exists()
    # The README names eprobes also on a kernel that was built without kprobes, and so without them.
    no_eprobes = "\ne:kprobe_exporter/" not in f"\n{(tracefs / 'dynamic_events').read_text()}"
    assert no_eprobes or "eprobes" not in lacks
    shown = (own / "filter").read_text()
    assert ("||" in shown) == (no_eprobes and hist and not more), shown
    assert ("the agent evaluates the filter" in agent.get("/")) == no_eprobes
    other.submit(send).result()
    settled(agent, "kprobe_duration_seconds_count", 13, probe="between")
    eventually(lambda: agent.scrape().total("kprobe_first_total") == 23)
    # Hits are read from the kernel apart from the events, and less often.
    hits = before.value("kprobe_hits_total", probe="first")
    eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="first") >= hits + 13 + 13 + 10 + 7)
    metrics = agent.scrape()
    assert metrics.value("kprobe_first_total", tid=str(tid)) == 23
    assert metrics.total("kprobe_second_sum_total") == 13 * SECOND
    grown = {
        name: metrics.value("kprobe_hits_total", probe=name) - before.value("kprobe_hits_total", probe=name)
        for name in names
    }
    assert len(set(grown.values())) == 1, grown
    if more:
        assert metrics.value("kprobe_all_total", sig=str(int(OTHER))) >= 7
        assert metrics.total("kprobe_all_total") == metrics.value("kprobe_hits_total", probe="all")
    lost = {reason: number for reason, number in losses(metrics).items() if number}
    assert lost == {"unpaired": 9}


def losses(metrics: Metrics) -> dict[str, float]:
    name = "kprobe_exporter_events_lost_total"
    return {labels["reason"]: metrics.total(name, reason=labels["reason"]) for labels in metrics.labels(name)}
