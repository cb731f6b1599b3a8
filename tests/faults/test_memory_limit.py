"""Attacks on the memory of an agent with the 192 MiB of the DaemonSet: it lives, and answers scrapes."""

import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.certificates import Authority
from tests.support.churn import Churn
from tests.support.compiling import compiled
from tests.support.folded import folded
from tests.support.memory_cgroup import MemoryCgroup, memory_cgroup
from tests.support.own_network import own_network
from tests.support.patience import eventually, patience, within
from tests.support.system_calls import only_x86
from tests.support.web_target import client_hello, flood_of_handshakes

LIMIT = 192 << 20
SCRAPE_S, END_S = 5, 5
"""Seconds in which each scrape is answered, and in which the agent ends."""

EXITS = """
global: {tracefs_instance: kprobe_exporter_memory}
probes:
  - name: exits
    attach: tracepoint:sched:sched_process_exit
    limit: none
    metrics: [{counter: exits_total, labels: [common_tgid]}]
"""
STACKS = """
global: {tracefs_instance: kprobe_exporter_memory}
probes:
  - name: calls
    attach: tracepoint:syscalls:sys_enter_getppid
    limit: none
    stacks: {user: true}
"""


@pytest.fixture
def group() -> Iterator[MemoryCgroup]:
    with memory_cgroup(LIMIT) as made:
        yield made


@contextmanager
def scraped(group: MemoryCgroup, agent: AgentProcess, scrape: Callable[[], object]) -> Iterator[None]:
    """Scrape while the context lasts, and then once more; the agent lives, and ends in time.

    A scrape whose connection is dropped for others is tried again: in an emulated machine a handshake takes
    as long as hundreds of connections of a flood.
    """
    over, failures, seconds = threading.Event(), list[Exception](), [0.0]

    def answered() -> bool:
        with suppress(ConnectionError):
            scrape()
            return True
        return False

    def run() -> None:
        while not over.wait(0.2) and not failures:
            try:
                begun = time.monotonic()
                with within(SCRAPE_S):
                    eventually(answered, SCRAPE_S)
                seconds.append(time.monotonic() - begun)
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    peak = f"{group.peak() / 1e6:.0f} MB of {LIMIT / 1e6:.0f} MB"
    print(f"{len(seconds) - 1} scrapes, the slowest took {max(seconds):.2f} s; {peak}")
    assert not failures, failures
    assert len(seconds) > 1
    scrape()
    assert (group.killed(), agent.poll()) == (0, None)
    with within(END_S):
        assert agent.end() == 0


def test_flood_of_unfinished_handshakes(group: MemoryCgroup, start_agent: StartAgent, tmp_path: Path) -> None:
    """10,000 clients send 10 bytes of a ClientHello. The scraper has another address."""
    authority = Authority(tmp_path / "keys")
    authority.issue("server")
    web = tmp_path / "keys/web.yml"
    web.write_text("tls_server_config: {cert_file: server.pem, key_file: server.key}\n")
    client = ssl.create_default_context(cafile=authority.certificate)
    agent = start_agent(EXITS, "--web.config.file", str(web), main=group.execute)
    port = int(agent.address.rpartition(":")[2])

    def scrape() -> None:
        connection = HTTPSConnection(
            "127.0.0.1", port, timeout=patience(10), source_address=("127.0.0.9", 0), context=client
        )
        connection.request("GET", "/metrics")
        assert b"kprobe_up" in connection.getresponse().read()
        connection.close()

    with scraped(group, agent, scrape):
        flood_of_handshakes(port, client_hello(client)[:10], 20)


PROCESSES = 3000

FORK = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    for (int process = atoi(words[1]); process; process--) {
        if (fork() == 0) _exit(0);
        wait(0);
    }
    return 0;
}
"""


@pytest.mark.needs("initial_pid_namespace")
def test_threads_that_end_at_once(group: MemoryCgroup, start_agent: StartAgent, tmp_path: Path) -> None:
    program = compiled(tmp_path / "program", FORK)
    agent = start_agent(EXITS, main=group.execute)
    with scraped(group, agent, agent.scrape):
        subprocess.run([program, str(PROCESSES)], check=True)
        eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="exits") >= PROCESSES)


def test_clients_of_many_addresses(group: MemoryCgroup, start_agent: StartAgent) -> None:
    """300 addresses of this machine, each of which connects again as soon as it is dropped."""
    agent = start_agent(EXITS, main=group.execute)
    port = int(agent.address.rpartition(":")[2])
    addresses = [f"127.0.{number // 250}.{number % 250 + 2}" for number in range(300)]
    with scraped(group, agent, agent.scrape), Churn(port, addresses) as churn:
        eventually(lambda: churn.connections > 5000, 60)


def test_clients_of_one_ipv6_site(group: MemoryCgroup, start_agent: StartAgent) -> None:
    """300 networks of one /48, of which another one is the scraper's."""
    with own_network("2001:db8:1::/48"):
        agent = start_agent(EXITS, "--web.listen-address", "[::1]:0", main=group.execute)
        eventually(lambda: agent.output().count("serving metrics at") == 2)
        port = int(agent.output().rpartition("http://[::1]:")[2].partition("/")[0])
        source = ("2001:db8:1:ffff::1", 0)

        def scrape() -> None:
            connection = HTTPConnection("::1", port, timeout=patience(10), source_address=source)
            connection.request("GET", "/metrics")
            assert b"kprobe_up" in connection.getresponse().read()
            connection.close()

        addresses = [f"2001:db8:1:{number:x}::9" for number in range(300)]
        with scraped(group, agent, scrape), Churn(port, addresses) as churn:
            eventually(lambda: churn.connections > 5000, 60)


FORGE = """
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
/* Each process has many executable mappings of a file, and makes calls below frames that it forged. */
enum { PAGE = 4096, FRAMES = 127 };
struct frame { struct frame *next; void *address; };
static __attribute__((noinline)) void call(struct frame *first) {
  long number = 110;
  __asm__ volatile("push %%rbp; mov %1, %%rbp; syscall; pop %%rbp"
                   : "+a"(number) : "r"(first) : "rcx", "r11", "memory");
}
int main(int count, char **words) {
  int processes = atoi(words[2]), calls = atoi(words[3]);
  long mappings = atoi(words[4]), size = 2 * PAGE * mappings, number = 0;
  int file = open(words[1], O_RDWR | O_CREAT, 0600);
  if (ftruncate(file, size)) return 1;
  char *place = mmap(0, size, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_NORESERVE, file, 0);
  for (long one = 0; one < mappings; one++)
    if (mprotect(place + 2 * PAGE * one, PAGE, PROT_READ)) return 2;
  setpgid(0, 0);
  for (int process = 0; process < processes; process++) {
    if (fork() == 0) {
      struct frame chain[FRAMES];
      srandom(process);
      while (number++ < calls) {
        for (int one = 0; one < FRAMES; one++) {
          chain[one].next = one + 1 < FRAMES ? chain + one + 1 : 0;
          chain[one].address = place + 2 * PAGE * (random() % mappings) + PAGE + random() % PAGE;
        }
        call(chain);
        usleep(500);
      }
      pause();
    }
    usleep(50000);  /* so that the agent has time to look at each */
  }
  sleep(2);
  signal(SIGUSR1, SIG_IGN);
  kill(0, SIGUSR1);
  while (wait(0) > 0);
  return 0;
}
"""


@only_x86
@pytest.mark.needs("initial_pid_namespace")
def test_programs_with_forged_stacks(group: MemoryCgroup, start_agent: StartAgent, tmp_path: Path) -> None:
    """200 processes, each with 8,000 executable mappings, and 100 stacks that it forged."""
    program = compiled(tmp_path / "program", FORGE, "-mno-red-zone", "-fno-omit-frame-pointer")
    agent = start_agent(STACKS, main=group.execute)
    with scraped(group, agent, lambda: (agent.scrape(), folded(agent, "calls"))):
        subprocess.run([program, tmp_path / "code", "200", "100", "8000"], check=True)
        assert any("[code]" in stack for stack in folded(agent, "calls"))
