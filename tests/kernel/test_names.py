"""Numbers get the kernel's own words, by its print fmt and by its enums, and `where` compares with them."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.kernel_ids import kernel_tid

TIMES = 7


def connect() -> None:
    for _ in range(TIMES):
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()


@pytest.mark.parametrize("aggregate", ["events", "kernel"])
def test_words_of_a_tracepoint(start_agent: StartAgent, aggregate: str) -> None:
    with ThreadPoolExecutor(1) as apart:  # a scrape connects too
        tid = apart.submit(kernel_tid).result()
        agent = start_agent(f"""
probes:
  - name: states
    attach: tracepoint:sock:inet_sock_set_state
    fetch: {{to: newstate, family: family}}
    filter: "common_pid == {tid}"
    aggregate: {aggregate}
    metrics:
      - counter: states_total
        labels: {{to: {{field: to, decode: name}}, family: {{field: family, decode: name}}}}
      - counter: opened_total
        labels: {{to: {{field: to, decode: name}}}}
        where: to == "TCP_SYN_SENT" || to == "TCP_LISTEN"
""")
        apart.submit(connect).result()
    metrics = agent.scrape()
    for state in ("TCP_SYN_SENT", "TCP_LISTEN"):
        assert metrics.value("kprobe_states_total", to=state, family="AF_INET") == TIMES
        assert metrics.value("kprobe_opened_total", to=state) == TIMES
    assert {labels["to"] for labels in metrics.labels("kprobe_opened_total")} == {
        "TCP_SYN_SENT",
        "TCP_LISTEN",
    }
    assert all(labels["to"].startswith("TCP_") for labels in metrics.labels("kprobe_states_total"))


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize("source", ["binary", "text"])
def test_enumerators_of_members_and_of_a_named_enum(start_agent: StartAgent, source: str) -> None:
    """The type of a socket's state is an enum, that of its kind a short (include/linux/net.h)."""
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: listening
    attach: kprobe:inet_listen
    fetch: {{state: sock->state, kind: sock->type, other: backlog}}
    filter: "common_pid == {kernel_tid()}"
    metrics:
      - counter: listens_total
        labels:
          state: {{field: state, decode: name}}
          kind: {{field: kind, decode: {{name: {{enum: sock_type}}}}}}
          other: {{field: other, decode: name}}
      - counter: unconnected_total
        labels: {{state: {{field: state, decode: name}}}}
        where: state ~ "*UNCONNECTED" && other == 3
      - counter: connected_total
        labels: {{state: {{field: state, decode: name}}}}
        where: state == "SS_CONNECTED"
""")
    for _ in range(TIMES):
        with socket.socket() as one:
            one.listen(3)
    metrics = agent.scrape()
    labels = {"state": "SS_UNCONNECTED", "kind": "SOCK_STREAM", "other": "3"}
    assert metrics.value("kprobe_listens_total", **labels) == TIMES
    assert metrics.value("kprobe_unconnected_total", state="SS_UNCONNECTED") == TIMES
    assert metrics.labels("kprobe_connected_total") == []
