"""An agent to which something is done, and what it says of it."""

import os

from kprobe_exporter.agent.interference import Fault
from tests.support.agent_process import AgentProcess
from tests.support.patience import eventually

HITS, DELIVERED = "kprobe_hits_total", "kprobe_exporter_events_total"
LOST = "kprobe_exporter_events_lost_total"
AGE = "kprobe_exporter_kernel_read_age_seconds"

TIMES = 23

CONFIG = """
probes:
  - {name: ppid, attach: 'kprobe:sys_getppid', metrics: [{counter: ppid_total}]}
  - {name: soft, attach: 'kprobe:sys_getppid'}
  - name: enters
    attach: tracepoint:syscalls:sys_enter_getppid
    metrics: [{counter: enters_total, labels: [comm]}]
"""


class Suffering:
    """An agent, and what its metrics and its log say about interference."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent = agent

    def holds(self, fault: Fault) -> bool:
        return self.agent.scrape().value("kprobe_exporter_fault", fault=fault) == 1

    def noticed(self, fault: Fault) -> float:
        return self.agent.scrape().value("kprobe_exporter_faults_total", fault=fault)

    def told(self, fault: Fault) -> int:
        """The number of log lines about this fault."""
        return self.agent.output().count(f"[{fault}]")

    def counts(self, *probes: str, events: bool = True) -> bool:
        """Whether these probes count each of a few calls, as hits and, with ``events``, as events."""
        before = self.agent.scrape()
        for _ in range(TIMES):
            os.getppid()
        names = [HITS, DELIVERED] if events else [HITS]

        def more() -> bool:
            after = self.agent.scrape()
            return all(
                after.value(name, probe=probe) - before.value(name, probe=probe) == TIMES
                for name in names
                for probe in probes
            )

        try:
            eventually(more, 4)
        except AssertionError:
            return False
        return True

    def is_well(self) -> None:
        assert self.counts("ppid", "enters"), self.agent.scrape().text
        assert self.counts("soft", events=False)
        assert self.agent.scrape().value(LOST, reason="unparsed") == 0
        assert "Traceback" not in self.agent.output()
