"""When a probe of any kind is flooded, all hits are accounted for: as events delivered or events lost."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.flood import FLOOD, flooded, losses, settled
from tests.support.provoked_calls import getppid
from tests.vm.kernels import HIST

pytestmark = pytest.mark.needs("kprobe_events")

THREADS = 2
ENTERS, EXITS = "tracepoint:syscalls:sys_enter_getppid", "tracepoint:syscalls:sys_exit_getppid"
ON_TRACEPOINTS = (
    f'"{ENTERS}"',
    '"syscall:getppid"',
    f'{{pair: {{from: "{ENTERS}", to: "{EXITS}", key: [tid]}}}}',
)


@pytest.mark.parametrize(
    ("attach", "of"),
    [
        ('"kprobe:sys_getppid"', "single"),
        ('"call:sys_getppid"', "call"),
        *zip(ON_TRACEPOINTS, ("single", "pair", "pair"), strict=True),
    ],
)
def test_what_fired_is_delivered_or_told_as_lost(
    start_agent: StartAgent, tracefs: Path, attach: str, of: str
) -> None:
    """Each half is an event in the ring buffer, and a half without the other one is ``unpaired``. With a key
    (for a system call, its thread) an end is ignored if its beginning was lost. The last call of a thread
    whose return was lost stays open. The events about threads that the agent records with calls and pairs
    are in a buffer of their own, whose losses are not among these."""
    agent = start_agent(f"""
global: {{buffer_size: 16KiB, limit: none}}
probes:
  - name: flood
    limit: none
    attach: {attach}
    metrics: [{{counter: calls_total, labels: [tid]}}]
""")

    def flood() -> None:
        with ProcessPoolExecutor(THREADS) as others:
            list(others.map(getppid, [FLOOD // THREADS] * THREADS))

    fired, metrics = flooded(agent, flood)
    assert metrics.value("kprobe_exporter_events_lost_total", reason="unparsed") == 0
    hits = metrics.value("kprobe_hits_total", probe="flood")
    events = metrics.value("kprobe_exporter_events_total", probe="flood")
    assert losses(metrics) > 0
    assert metrics.total("kprobe_calls_total") == events
    lost = losses(metrics) + metrics.value("kprobe_exporter_events_lost_total", reason="unpaired")
    halves = 1 if of == "single" else 2
    most = {"single": 0, "call": THREADS, "pair": losses(metrics)}[of]
    if attach in ON_TRACEPOINTS and not (tracefs / HIST).exists():
        # Nothing counts a tracepoint's hits in this kernel: they are what arrived.
        assert events <= hits
        assert halves * events + lost >= halves * fired - most
        return
    assert hits >= fired
    untold = halves * (hits - events) - lost
    assert 0 <= untold <= most, f"{hits=} {events=} {lost=}; then {settled(agent).text}"
