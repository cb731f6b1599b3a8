"""Values behind pointers, by their members' names, are those that the program knows; null gives none."""

import os
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.dry_runs import look
from tests.support.kernel_ids import kernel_tid
from tests.vm.kernels import EPROBES, HIST

pytestmark = pytest.mark.needs("kprobe_events")

CONNECTIONS = 23
TIMES = 7


@pytest.fixture
def apart() -> Iterator[ThreadPoolExecutor]:
    """A thread of its own, because a scrape connects too."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def connect(port: int, host: str) -> None:
    with socket.create_server((host, port)) as server, socket.create_connection((host, port)):
        server.accept()[0].close()


def connected() -> Counter[tuple[str, str]]:
    """Connect to addresses and ports of which no two are alike, some of them twice; return how often."""
    done: Counter[tuple[str, str]] = Counter()
    for number in range(CONNECTIONS):
        host, port = f"127.0.{number % 5}.{number + 2}", 7000 + 259 * number
        for _ in range(1 + number % 2):
            connect(port, host)
            done[host, str(port)] += 1
    return done


@pytest.mark.parametrize("source", ["binary", "text"])
@pytest.mark.parametrize("attach", ["kprobe", "call"])
def test_connections_by_address_and_port(
    start_agent: StartAgent, apart: ThreadPoolExecutor, source: str, attach: str
) -> None:
    tid = apart.submit(kernel_tid).result()
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: connect
    attach: {attach}:tcp_connect
    fetch:
      to: sk->__sk_common.skc_daddr
      port: sk->__sk_common.skc_dport
      family: ["sk->no_such_member", "sk->__sk_common.skc_family"]
      same: (sock)sk->__sk_common.skc_dport
    filter: "common_pid == {tid}"
    metrics:
      - counter: connects_total
        labels:
          to: {{field: to, decode: ip}}
          port: port
          decoded: {{field: port, decode: port}}
          same: same
          family: family
      - counter: high_total
        where: port > 9000
  - name: one
    attach: kprobe:tcp_connect
    fetch: {{port: sk->__sk_common.skc_dport}}
    filter: "common_pid == {tid} && port == 7259"
    metrics: [{{counter: one_total}}]
  - name: others
    attach: kprobe:tcp_connect
    fetch: {{port: sk->__sk_common.skc_dport}}
    filter: "common_pid == {tid} && port != 7259"
    metrics: [{{counter: others_total}}]
""")
    done = apart.submit(connected).result()
    metrics = agent.scrape()
    seen: Counter[tuple[str, str]] = Counter()
    for labels in metrics.labels("kprobe_connects_total"):
        assert labels["port"] == labels["decoded"] == labels["same"]
        assert labels["family"] == str(socket.AF_INET.value)
        seen[labels["to"], labels["port"]] += int(metrics.value("kprobe_connects_total", **labels))
    assert seen == done
    assert len(done) == CONNECTIONS
    high = sum(times for (_, port), times in done.items() if int(port) > 9000)
    assert metrics.value("kprobe_high_total") == high
    assert metrics.value("kprobe_one_total") == 2
    assert metrics.value("kprobe_others_total") == done.total() - 2


@pytest.mark.parametrize("source", ["binary", "text"])
def test_a_null_pointer_gives_no_value(
    start_agent: StartAgent, apart: ThreadPoolExecutor, source: str
) -> None:
    """A socket's sk_user_data is null unless a driver of the kernel uses it."""
    tid = apart.submit(kernel_tid).result()
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: connect
    attach: kprobe:tcp_connect
    fetch:
      behind: (sock)(sk->sk_user_data)->__sk_common.skc_dport
      far: (sock)(sk->sk_user_data)->sk_prot_creator->name
    filter: "common_pid == {tid}"
    metrics:
      - {{counter: connects_total, labels: [behind]}}
      - {{counter: names_total, labels: [far]}}
      - {{counter: sum_total, value: behind}}
      - {{counter: equal_total, where: behind >= 0}}
  - name: filtered
    attach: kprobe:tcp_connect
    fetch: {{behind: (sock)(sk->sk_user_data)->sk_protocol}}
    filter: "common_pid == {tid} && behind >= 0"
    metrics: [{{counter: filtered_total}}]
  - name: unequal
    attach: kprobe:tcp_connect
    fetch: {{behind: (sock)(sk->sk_user_data)->sk_protocol}}
    filter: "common_pid == {tid} && behind != 3"
    metrics: [{{counter: unequal_total}}]
""")
    for number in range(TIMES):
        apart.submit(connect, 7000 + number, "127.0.0.1").result()
    metrics = agent.scrape()
    assert metrics.value("kprobe_connects_total", behind="unknown") == TIMES
    assert metrics.value("kprobe_names_total", far="unknown") == TIMES
    assert metrics.value("kprobe_sum_total") == 0
    assert metrics.value("kprobe_exporter_events_lost_total", reason="unreadable") == TIMES
    assert metrics.value("kprobe_equal_total") == 0
    assert metrics.value("kprobe_filtered_total") == 0
    assert metrics.value("kprobe_unequal_total") == TIMES


def test_what_a_function_returns_and_was_given(start_agent: StartAgent, tmp_path: Path) -> None:
    """The function is called do_file_open on 7.2."""
    agent = start_agent(f"""
probes:
  - name: opened
    attach: ["kretprobe:do_filp_open", "kretprobe:do_file_open"]
    fetch: {{inode: $retval->f_inode->i_ino}}
    filter: "common_pid == {kernel_tid()}"
    metrics: [{{counter: opened_total, labels: [inode]}}]
  - name: named
    attach: ["call:do_filp_open", "call:do_file_open"]
    fetch: {{file: pathname->name}}
    filter: "common_pid == {kernel_tid()}"
    metrics: [{{counter: named_total, labels: [file]}}]
""")
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.touch()
    for _ in range(TIMES):
        there.read_bytes()
        with suppress(FileNotFoundError):
            missing.read_bytes()
    metrics = agent.scrape()
    assert metrics.value("kprobe_opened_total", inode=str(there.stat().st_ino)) >= TIMES
    assert metrics.value("kprobe_opened_total", inode="unknown") >= TIMES
    assert metrics.value("kprobe_named_total", file=str(there)) >= TIMES
    assert metrics.value("kprobe_named_total", file=str(missing)) == TIMES


def test_a_bit_field_and_an_embedded_array(start_agent: StartAgent) -> None:
    agent = start_agent(f"""
probes:
  - name: bound
    attach: kprobe:inet_listen
    fetch:
      reuseport: sock->sk->__sk_common.skc_reuseport
      thread: (task_struct)(sock->sk)->comm
      kind: sock->type
    filter: "common_pid == {kernel_tid()}"
    metrics: [{{counter: listens_total, labels: [reuseport, kind]}}]
""")
    for number in range(TIMES):
        with socket.socket() as plain, socket.socket() as shared:
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            plain.listen()
            if number:
                shared.listen()
    metrics = agent.scrape()
    kind = str(socket.SOCK_STREAM.value)
    assert metrics.value("kprobe_listens_total", reuseport="0", kind=kind) == TIMES
    assert metrics.value("kprobe_listens_total", reuseport="1", kind=kind) == TIMES - 1


def test_the_kernel_counts_by_members(start_agent: StartAgent, apart: ThreadPoolExecutor) -> None:
    tid = apart.submit(kernel_tid).result()
    agent = start_agent(f"""
probes:
  - name: connect
    attach: kprobe:tcp_connect
    fetch: {{port: sk->__sk_common.skc_num, behind: (sock)(sk->sk_user_data)->sk_protocol}}
    filter: "common_pid == {tid}"
    aggregate: kernel
    metrics: [{{counter: family_total, labels: [behind]}}]
  - name: family
    attach: kprobe:tcp_connect
    fetch: {{family: sk->__sk_common.skc_family}}
    filter: "common_pid == {tid}"
    aggregate: kernel
    metrics: [{{counter: families_total, labels: [family]}}]
""")
    for number in range(TIMES):
        apart.submit(connect, 7000 + number, "127.0.0.1").result()
    metrics = agent.scrape()
    assert metrics.value("kprobe_families_total", family=str(socket.AF_INET.value)) == TIMES
    # Hist triggers leave out what is behind a null pointer; without them, the agent counts events.
    expected = [] if has(HIST) else [{"behind": "unknown"}]
    assert metrics.labels("kprobe_family_total") == expected


@pytest.mark.parametrize("source", ["binary", "text"])
def test_what_is_behind_a_tracepoints_field(
    start_agent: StartAgent, apart: ThreadPoolExecutor, source: str
) -> None:
    """The tracepoint has the same values itself; 2 is TCP_SYN_SENT (include/net/tcp_states.h)."""
    tid = apart.submit(kernel_tid).result()
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: states
    attach: tracepoint:sock:inet_sock_set_state
    fetch:
      new: newstate
      dport: dport
      behind: (sock)skaddr->__sk_common.skc_dport
      family: (sock)skaddr->__sk_common.skc_family
      protocol: (sock)skaddr->__sk_common.skc_prot->name
      nothing: (sock)((sock)skaddr->sk_user_data)->sk_protocol
    filter: "common_pid == {tid} && newstate == 2"
    metrics:
      - counter: states_total
        labels: [dport, behind, family, protocol, nothing]
  - name: one
    attach: tracepoint:sock:inet_sock_set_state
    fetch: {{behind: (sock)skaddr->__sk_common.skc_dport}}
    filter: "common_pid == {tid} && newstate == 2 && behind == 7259"
    metrics: [{{counter: one_total}}]
""")
    if not has(EPROBES):  # without eprobes, as 5.10 is, there is no such value
        assert "'behind' is behind a field, which only an eprobe can follow" in agent.output()
        return
    done = apart.submit(connected).result()
    metrics = agent.scrape()
    seen: Counter[str] = Counter()
    for labels in metrics.labels("kprobe_states_total"):
        assert labels["dport"] == labels["behind"]
        assert (labels["protocol"], labels["nothing"]) == ("TCP", "unknown")
        assert labels["family"] == str(socket.AF_INET.value)
        seen[labels["behind"]] += int(metrics.value("kprobe_states_total", **labels))
    assert seen == Counter({port: times for (_, port), times in done.items()})
    assert metrics.value("kprobe_one_total") == 2


WRONG = """
probes:
  - name: misspelt
    attach: kprobe:tcp_connect
    fetch:
      port: sk->__sk_common.skc_dprt
  - name: dotted
    attach: kprobe:tcp_connect
    fetch: {port: "sk->__sk_common->skc_dport"}
  - name: cast
    attach: kprobe:tcp_connect
    fetch: {port: (sokc)sk->__sk_common.skc_dport}
  - name: field
    attach: tracepoint:sock:inet_sock_set_state
    fetch: {port: (sock)skadr->sk_protocol}
  - name: small
    attach: tracepoint:sock:inet_sock_set_state
    fetch: {port: (sock)newstate->sk_protocol}
  - name: right
    attach: kprobe:tcp_connect
    fetch: {port: sk->__sk_common.skc_dport}
"""


def test_check_live_says_where_a_path_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(WRONG)
    rows = {row["probe"]: row for row in look(path)}
    why = {name: "; ".join(row["why"]) for name, row in rows.items()}
    misspelt = f"{path}:6:28: struct sock_common has no member 'skc_dprt', did you mean 'skc_dport'"
    dotted = f"{path}:9:35: sk->__sk_common is struct sock_common, no pointer: write .skc_dport"
    cast = f"{path}:12:20: these types have no structure 'sokc', did you mean 'sock'"
    assert misspelt in why["misspelt"]
    assert dotted in why["dotted"]
    assert cast in why["cast"]
    field = f"{path}:15:19: the tracepoint inet_sock_set_state has no field 'skadr', did you mean 'skaddr'?"
    assert field in why["field"]
    assert f"{path}:18:19: the field 'newstate' is int, no address" in why["small"]
    assert {rows[name]["state"] for name in ("misspelt", "dotted", "cast")} == {"down"}
    assert rows["right"]["state"] == "up"
    assert "members: port=+12(" in why["right"]
    assert os.listdir(tmp_path) == ["wrong.yaml"]
