"""Probes on programs in containers: attached where one starts, each hit counted once, released at its end."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kprobe_exporter.cli import main
from kprobe_exporter.tracefs.files import MountedTracefs
from tests.faults.confinement import confined, only
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.compiling import compiled
from tests.support.containers import container_id
from tests.support.hanging_mount import hanging
from tests.support.mounts import mounted
from tests.support.patience import eventually, within

pytestmark = pytest.mark.needs("uprobe_events", "host_proc")

PATH = "/usr/bin/twice"
CAP_SYS_PTRACE = 19
"""include/uapi/linux/capability.h. The agent has no other capability here."""

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) int twice(int n) { __asm__(""); return 2 * n; }
/* For each line that it reads, it calls the function as often as that says, and answers with a line. */
int main(int count, char **words) {
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        for (int times = atoi(line), n = 0; n < times; n++)
            if (twice(n) < 0) return 1;
        puts("called");
        fflush(stdout);
    }
    return count < 0;
}
"""
MORE = "__attribute__((noinline)) int before(int n) { return 3 * n; } int (*used)(int) = before;\n"

CONFIG = f"""
probes:
  - name: entry
    container: "a*"
    attach: "uprobe:{PATH}:twice"
    fetch: {{n: "$arg1:s32"}}
    metrics: [{{counter: calls_total, labels: {{container: {{field: tid, decode: {{container: short}}}}}}}}]
  - {{name: whole, container: "a*", attach: "ucall:{PATH}:twice"}}
"""


class Node:
    """Images, and containers of these: a cgroup, an overlay of the image, and a process in both."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory, self.stack = directory, stack
        hierarchy = directory / "cgroups"
        hierarchy.mkdir()
        self.cgroups = stack.enter_context(mounted(hierarchy, "-t", "cgroup2")) / "docker"
        stack.callback(_is_done, ["rmdir", self.cgroups])
        # Directories of an overlay must not lie in an overlay, or on 9p, as the guest's root does.
        files = directory / "files"
        files.mkdir()
        self.files = stack.enter_context(mounted(files, "-t", "tmpfs"))

    def image(self, name: str, source: str = PROGRAM) -> Path:
        path = self.files / f"{name}{PATH}"
        path.parent.mkdir(parents=True)
        shutil.copy(compiled(self.directory / name, source, "-static"), path)
        return self.files / name

    def start(self, image: Path, number: int) -> "Started":
        return Started(self, image, number)


class Started:
    """A container that runs until ``end``."""

    def __init__(self, node: Node, image: Path, number: int) -> None:
        name = container_id(number)
        self.cgroup = node.cgroups / name
        self.cgroup.mkdir(parents=True)
        node.stack.callback(_is_done, ["rmdir", self.cgroup])
        own = node.files / name
        for part in ("upper", "work", "merged"):
            (own / part).mkdir(parents=True)
        layers = f"lowerdir={image},upperdir={own / 'upper'},workdir={own / 'work'}"
        self.merged, self.id = own / "merged", name[:12]
        subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", self.merged], check=True)
        enter = f"echo $$ > {self.cgroup}/cgroup.procs; exec chroot {self.merged} {PATH}"
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(["sh", "-c", enter], stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self.ended = False
        node.stack.callback(self.end)

    def call(self, times: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{times}\n")
        assert self.process.stdout.readline() == "called\n"

    def end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self.process.communicate()
        eventually(lambda: _is_done(["umount", self.merged]), 30)


def _is_done(command: list[str | Path]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        made = Node(tmp_path, stack)
        yield made


def attached(agent: AgentProcess, files: int, tracefs: MountedTracefs, times: int, pruned: int = 0) -> None:
    """Wait until each of the two probes is defined in so many files, of which a call has two definitions.

    ``times`` is how often each was attached since the start, ``pruned`` how often definitions were deleted.
    """

    def defined() -> int:
        return sum(tracefs.read("uprobe_events").count(b"/%s" % name) for name in (b"entry", b"whole"))

    eventually(lambda: agent.output().count("INFO agent.installer: ") == 2 * times, 20)
    eventually(lambda: agent.output().count("deleted retired definitions") == pruned, 20)
    assert defined() == 3 * files
    assert "Traceback" not in agent.output()


def test_containers_come_and_go(node: Node, start_agent: StartAgent, files: MountedTracefs) -> None:
    """The agent has the capability that docs/operating.md lists for containers, and no other one."""
    first, second = node.image("first"), node.image("second", MORE + PROGRAM)
    agent = start_agent(CONFIG, main=confined(main, only(CAP_SYS_PTRACE)))
    metrics = agent.scrape()
    for probe in ("entry", "whole"):
        assert metrics.value("kprobe_exporter_probe_absent", probe=probe) == 1
    one = node.start(first, 0xA1)
    attached(agent, 1, files, times=1)
    one.call(100)
    two, other, stranger = node.start(first, 0xA2), node.start(second, 0xA3), node.start(second, 0xB1)
    attached(agent, 2, files, times=2)
    two.call(20)
    other.call(3)
    calls = {one.id: 100, two.id: 20, other.id: 3}

    def counted() -> bool:
        found = agent.scrape()
        labels = {name: found.value("kprobe_calls_total", container=name) for name in calls}
        return labels == calls and all(
            found.value("kprobe_hits_total", probe=probe) == sum(calls.values())
            for probe in ("entry", "whole")
        )

    eventually(counted, 10)
    other.end()  # it unmounts the file system, which no definition holds
    one.end()  # the other container with this file gets a definition of its own
    attached(agent, 1, files, times=3, pruned=2)
    two.call(7)
    calls[two.id] += 7
    eventually(counted, 10)
    two.end()
    attached(agent, 0, files, times=3, pruned=3)
    eventually(counted, 10)
    stranger.end()
    assert agent.scrape().value("kprobe_exporter_probe_absent", probe="entry") == 1


DEAD = 24
"""Containers whose file systems do not answer. An agent that waited for each would stop too late."""

END_S, SCRAPE_S = 5, 1.5
"""Seconds in which SIGTERM is obeyed, and in which a scrape is answered."""


def die(containers: list[Started], stack: ExitStack) -> None:
    """Let the directory of each container's program hang while the context lasts."""
    for one in containers:
        stack.enter_context(hanging(one.merged / Path(PATH).parent.relative_to("/")))


def hung(agent: AgentProcess) -> int:
    """Return how many threads hang in such a file system."""
    return sum("fuse" in path.read_text() for path in Path(f"/proc/{agent.pid}/task").glob("*/stack"))


def test_the_end_of_a_start_that_hangs(node: Node, start_agent: StartAgent) -> None:
    image = node.image("image")
    dead = [node.start(image, 0xA1 + number) for number in range(DEAD)]
    with ExitStack() as stack:
        die(dead, stack)
        agent = start_agent(CONFIG.replace("a*", "*"), serving=False)
        eventually(lambda: hung(agent))
        with within(END_S):
            assert agent.end() == 0
        assert "Traceback" not in agent.output()


def both_up(found: Metrics) -> bool:
    return all(found.value("kprobe_up", probe=probe) == 1 for probe in ("entry", "whole"))


START_S = 10
"""Seconds in which an agent starts beside them: it waits for 4 s in all, and then for 0.1 s for each."""


def test_a_start_beside_file_systems_that_hang(node: Node, start_agent: StartAgent) -> None:
    image = node.image("image")
    alive, *dead = [node.start(image, 0xA1 + number) for number in range(1 + DEAD)]
    with ExitStack() as stack:
        die(dead, stack)
        with within(START_S):
            agent = start_agent(CONFIG.replace("a*", "*"))
        eventually(lambda: both_up(agent.scrape()))
        alive.call(3)
        eventually(lambda: agent.scrape().value("kprobe_calls_total", container=alive.id) == 3)
        with within(END_S):
            assert agent.end() == 0


@pytest.mark.parametrize("moment", ["waits", "refused"])
def test_file_systems_that_hang_later(node: Node, start_agent: StartAgent, moment: str) -> None:
    """Scrapes and counts go on, and the agent ends in time: while it waits for them, and when it has."""
    image = node.image("image")
    alive, *dead = [node.start(image, 0xA1 + number) for number in range(1 + DEAD)]
    with ExitStack() as stack:
        agent = start_agent(CONFIG.replace("a*", "*"))
        eventually(lambda: both_up(agent.scrape()))
        die(dead, stack)
        wanted = 2 if moment == "waits" else DEAD
        alive.call(7)

        def noticed() -> bool:
            with within(SCRAPE_S):
                found = agent.scrape()
            calls = found.value("kprobe_calls_total", container=alive.id)
            return calls == 7 and hung(agent) >= wanted

        eventually(noticed, 40)
        if moment == "refused":
            eventually(lambda: agent.scrape().value("kprobe_exporter_fault", fault="container_hangs") == 1)
        with within(END_S):
            assert agent.end() == 0
        assert "Traceback" not in agent.output()
