"""A uprobe sits in the file that was parsed, not in one to which a user leads the path afterwards."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kprobe_exporter.util.rooted_path import status
from tests.kernel.conftest import StartAgent
from tests.support.compiling import compiled
from tests.support.crafted_elf import leading_to
from tests.support.leftovers import definitions
from tests.support.patience import eventually
from tests.support.programs import file_offset
from tests.support.system_calls import only_x86

pytestmark = pytest.mark.needs("uprobe_events")

NOBODY = 65534
STARTS = 8
TIMES = 23

VICTIM = """
/* A breakpoint within its first instruction is part of the number that it returns. */
__asm__(".globl answer\\n.type answer, @function\\nanswer: movl $0x01020304, %eax\\nret\\n");
int answer(void);
int main(void) { return answer() != 0x01020304; }
"""

PROGRAM = """
#include <stdlib.h>
__attribute__((noinline)) int twice(int n) { __asm__(""); return 2 * n; }
int main(int count, char **words) {
    for (int turn = atoi(words[1]); turn > 0; turn--)
        if (twice(turn) < 0) return 1;
    return 0;
}
"""


@contextmanager
def toggled(link: Path, targets: list[Path]) -> Iterator[None]:
    """Let a process without privileges change what the link names, as quickly as it can."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            new = link.with_name("new")
            while True:
                for target in targets:
                    new.symlink_to(target)
                    new.rename(link)
        finally:
            os._exit(1)
    try:
        eventually(link.is_symlink, 5)
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory of a user without privileges, which everybody may search."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    os.chown(directory, NOBODY, NOBODY)
    yield directory
    shutil.rmtree(directory)


@only_x86
def test_a_user_who_swaps_a_link_breaks_no_program(
    start_agent: StartAgent, tmp_path: Path, shared: Path
) -> None:
    """The user's own file says that the function is in the middle of an instruction of the victim."""
    tmp_path.chmod(0o755)
    victim = compiled(shared / "victim", VICTIM)
    inside = file_offset(str(victim), "answer") + 1
    own = leading_to(shared / "own", "answer", inside)
    assert subprocess.run([victim], check=False).returncode == 0
    probes = ", ".join(f"{{name: p{number}, attach: 'uprobe:{shared}/link:answer'}}" for number in range(4))
    with toggled(shared / "link", [own, victim]):
        for _ in range(STARTS):
            agent = start_agent(f"probes: [{probes}]")
            broken = subprocess.run([victim], check=False).returncode
            agent.end()
            assert not broken, agent.output()
            assert "Traceback" not in agent.output()


@pytest.mark.parametrize("kind", ["absolute", "directory"])
def test_a_link_in_a_container_does_not_lead_to_the_host(
    start_agent: StartAgent, tmp_path: Path, kind: str
) -> None:
    """Through /proc/PID/root, a container's link names the container's file."""
    host = compiled(tmp_path / "program", PROGRAM)
    inside = tmp_path / f"root{tmp_path}"
    inside.mkdir(parents=True)
    own = Path(shutil.copy(host, inside / "program"))
    link = tmp_path / "root/link"
    link.symlink_to(host if kind == "absolute" else tmp_path)
    path = "link" if kind == "absolute" else "link/program"
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.chroot(tmp_path / "root")
        os.write(ready[1], b"1")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        agent = start_agent(f"probes: [{{name: p, attach: 'uprobe:/proc/{pid}/root/{path}:twice'}}]")
        for program, times in [(host, 100), (own, TIMES)]:
            subprocess.run([program, str(times)], check=True)
        eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="p") == TIMES, 5)
        assert agent.output().count("was replaced") == 0
    finally:
        os.write(done[1], b"1")
        os.waitpid(pid, 0)
        for descriptor in (*ready, *done):
            os.close(descriptor)


def test_what_a_killed_agent_left_is_removed(start_agent: StartAgent, tmp_path: Path, tracefs: Path) -> None:
    """The kernel shows a descriptor of the agent that wrote the definition, in place of the path."""
    program = compiled(tmp_path / "program", PROGRAM)
    before = definitions(tracefs)
    config = f"probes: [{{name: p, attach: 'ucall:{program}:twice'}}]"
    agent = start_agent(config)
    ours = [
        line for line in (tracefs / "uprobe_events").read_text().splitlines() if "kprobe_exporter/" in line
    ]
    shown = [line for line in ours if "/p " in line or "/p_return " in line]
    assert (len(shown), len(ours)) == (2, 3)  # the third is the group's marker
    assert all(" /proc/self/fd/" in line for line in shown)
    agent.end(signal.SIGKILL)
    assert definitions(tracefs) != before
    again = start_agent(config)
    subprocess.run([program, str(TIMES)], check=True)
    eventually(lambda: again.scrape().value("kprobe_hits_total", probe="p") == TIMES, 5)
    assert again.end() == 0
    assert definitions(tracefs) == before


def test_a_link_where_the_file_system_tells_nothing_of_links() -> None:
    """The root of a VM's guest is 9p, on which fstatfs(2) of a link fails."""
    links = [path for path in Path("/usr/bin").iterdir() if path.is_symlink() and path.is_file()]
    assert links
    for link in links[:5]:
        found = status(str(link))
        assert (found.st_dev, found.st_ino) == (link.stat().st_dev, link.stat().st_ino)
