"""PostgreSQL's pack: its numbers are those of a real server and of pgbench; the dashboard shows them."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kprobe_exporter.cli import main
from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from tests.faults.confinement import confined, only
from tests.kernel.conftest import READ_EVERY, StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.patience import eventually
from tests.support.postgresql import DEBIAN, Server, Session, postgresql
from tests.support.usdt_programs import semaphore

pytestmark = pytest.mark.needs("uprobe_events")

ROOT = Path(__file__).parents[2]
PACK = ROOT / "examples/packs/postgresql.yaml"
DASHBOARD = ROOT / "grafana/dashboards/kprobe-exporter-postgresql.json"
CAP_DAC_READ_SEARCH = 2
"""include/uapi/linux/capability.h. The test's server is in a directory of its own user."""

NAMES = [probe.name for probe in load([PACK], DECODERS).probes]
HELD = 0.2
"""Seconds for which a lock is held while another session waits for it."""

SHORT, LONG = 0.004, 0.04
"""Seconds that statements sleep; between them lie the bounds 0.01 and 0.03 of the histogram."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    assert (DEBIAN / "bin/postgres").exists(), "Debian's package postgresql-15 is not installed"
    with postgresql() as running:
        yield running


def pack(server: Server, *names: str) -> str:
    """Return the pack with these probes alone, switched on, without limits, on the server's own program."""
    head, *probes = PACK.read_text().split("\n  - name: ")
    chosen = [probe for probe in probes if probe.partition("\n")[0] in names]
    assert len(chosen) == len(names)
    # A flood of a test may exceed 1 % of the CPUs' time.
    text = "\n  - name: ".join([head, *(probe.replace("\n", "\n    limit: none\n", 1) for probe in chosen)])
    places = {"usdt:/usr/lib/": "usdt:/nonexistent/", f"usdt:{DEBIAN}/bin/postgres": f"usdt:{server.program}"}
    for shipped, place in reversed(places.items()):
        text = text.replace(shipped, place)
    return "global: {limit: none}\n" + text.replace("enabled: false", "enabled: true")


def scraped(agent: AgentProcess) -> Metrics:
    """Return a scrape for which the kernel's counts were read anew."""
    time.sleep(READ_EVERY)
    return agent.scrape()


def grown(before: Metrics, after: Metrics, name: str, **labels: str) -> float:
    """Return by how much the samples with these labels have grown in all."""
    return after.total(f"kprobe_{name}", **labels) - before.total(f"kprobe_{name}", **labels)


def durations(before: Metrics, after: Metrics, probe: str) -> tuple[int, float]:
    """Return how many pairs of a probe were joined, and the sum of their durations in seconds."""
    count, total = (
        grown(before, after, f"duration_seconds_{part}", probe=probe) for part in ("count", "sum")
    )
    return int(count), total


def test_transactions_are_those_of_pg_stat_database(start_agent: StartAgent, server: Server) -> None:
    """Two sessions at a time, statements that fail, and transactions that end with their session.

    The agent has no capability but the one to look into the directory of the server (docs/operating.md).
    """
    probes = pack(server, "postgresql_commit", "postgresql_rollback", "postgresql_transaction")
    agent = start_agent(probes, main=confined(main, only(CAP_DAC_READ_SEARCH)))
    (server.directory / "rollback").write_text(
        "BEGIN;\nUPDATE pgbench_branches SET bbalance = 1;\nROLLBACK;\n"
    )
    committed, rolled_back = server.transactions()
    before = scraped(agent)
    server.pgbench("-c", "2", "-j", "2", "-t", "200")
    server.pgbench("-c", "2", "-t", "100", "-f", "rollback")
    server.pgbench("-c", "3", "-C", "-t", "10", "-S")
    with server.session() as session:
        session.ask("SELECT 1 / 0")
        session.ask("BEGIN")
        session.ask("SELECT count(*) FROM pgbench_tellers")
    then_committed, then_rolled_back = server.transactions()
    after = scraped(agent)
    assert then_committed - committed >= 400 + 30
    assert then_rolled_back - rolled_back == 200 + 2
    assert grown(before, after, "hits_total", probe="postgresql_commit") == then_committed - committed
    assert grown(before, after, "hits_total", probe="postgresql_rollback") == then_rolled_back - rolled_back
    assert durations(before, after, "postgresql_transaction")[0] == then_committed - committed
    # All that is lost are the beginnings of what was rolled back.
    unpaired = grown(before, after, "exporter_events_lost_total", reason="unpaired")
    assert grown(before, after, "exporter_events_lost_total") == unpaired
    assert 0 < unpaired <= then_rolled_back - rolled_back


def test_durations_lie_between_those_of_the_server_and_of_its_client(
    start_agent: StartAgent, server: Server
) -> None:
    """What pg_stat_statements measures is a part of a query, and pgbench waits for the whole of it.

    So each sum must lie between theirs, and for each bound of the histogram at least as many must be below
    it as pgbench saw below it. pgbench's log has whole microseconds, rounded down.
    """
    agent = start_agent(pack(server, "postgresql_query", "postgresql_simple_query"))
    for name, seconds in (("short", SHORT), ("long", LONG)):
        (server.directory / name).write_text(f"SELECT pg_sleep({seconds});\n")
    server.run("psql", "-Xqc", "SELECT pg_stat_statements_reset()")
    before = scraped(agent)
    server.pgbench("-t", "40", "-l", "--log-prefix", "latency", "-f", "short", "-f", "long")
    after = scraped(agent)
    row = server.run(
        "psql",
        "-XAtqc",
        "SELECT sum(calls), sum(total_exec_time) FROM pg_stat_statements WHERE query LIKE '%pg_sleep%'",
    )
    calls, milliseconds = row.split("|")
    [log] = server.directory.glob("latency.*")
    lines = [line.split() for line in log.read_text().splitlines()]
    latencies = [(int(line[2]) + 1) / 1e6 for line in lines]
    shorts = sum(line[3] == "0" for line in lines)
    log.unlink()
    executions, execution = durations(before, after, "postgresql_query")
    queries, query = durations(before, after, "postgresql_simple_query")
    assert executions == queries == int(calls) == len(latencies) == 40
    # pg_stat_statements adds ExecutorFinish, of less than 10 µs, which follows the probe.
    assert float(milliseconds) / 1e3 <= execution + 40 * 10e-6
    assert execution <= query <= sum(latencies)
    assert execution >= shorts * SHORT + (40 - shorts) * LONG
    for probe in ("postgresql_query", "postgresql_simple_query"):
        below = {
            float(labels["le"]): grown(before, after, "duration_seconds_bucket", probe=probe, le=labels["le"])
            for labels in after.labels("kprobe_duration_seconds_bucket")
            if labels["probe"] == probe
        }
        assert below[0.003] == 0
        assert below[0.03] <= shorts
        for bound, number in below.items():
            assert number >= sum(latency <= bound for latency in latencies), bound


def test_prepared_statements_are_queries_too(start_agent: StartAgent, server: Server) -> None:
    agent = start_agent(pack(server, "postgresql_query", "postgresql_simple_query"))
    (server.directory / "select").write_text("SELECT abalance FROM pgbench_accounts WHERE aid = 7;\n")
    before = scraped(agent)
    server.pgbench("-M", "prepared", "-t", "50", "-f", "select")
    after = scraped(agent)
    assert durations(before, after, "postgresql_query")[0] == 50
    assert durations(before, after, "postgresql_simple_query")[0] == 0
    assert grown(before, after, "exporter_events_lost_total") == 0


def test_semaphores_are_0_before_and_after(start_agent: StartAgent, server: Server) -> None:
    """Those of a process from before the agent's start, and of one that is forked while it runs."""
    probes = sorted(set(re.findall(r"\bpostgresql:(\w+__\w+)", PACK.read_text())))
    assert len(probes) == 20

    def wanted(*pids: int) -> list[int]:
        return [semaphore(pid, server.program, f"postgresql:{probe}") for pid in pids for probe in probes]

    with server.session() as session:
        first = int(session.ask("SELECT pg_backend_pid()"))
        assert wanted(first) == [0] * len(probes)
        agent = start_agent(pack(server, *NAMES))
        assert all(wanted(first))
        with server.session() as other:
            second = int(other.ask("SELECT pg_backend_pid()"))
            assert all(wanted(second))
            agent.end()
            assert wanted(first, second) == [0] * 2 * len(probes)
        with server.session() as later:
            assert not any(wanted(int(later.ask("SELECT pg_backend_pid()"))))


def test_each_probe_sees_what_it_is_for(start_agent: StartAgent, server: Server) -> None:
    agent = start_agent(pack(server, *NAMES))
    up = scraped(agent)
    assert all(up.value("kprobe_up", probe=name) == 1 for name in NAMES)
    with server.session() as one, server.session() as other, server.session() as third:
        _blocks(agent, one)
        _locks(agent, one, other, third)
        _deadlock(agent, one, other)
        _checkpoint(agent, one)
    _light_weight_locks(agent, server)
    after = scraped(agent)
    print(after.text)
    assert [name for name in NAMES if not grown(up, after, "hits_total", probe=name)] == []
    assert durations(up, after, "postgresql_plan")[0] > 0
    assert [selector for selector in _shown() if not _selects(selector, after)] == []


def _shown() -> set[tuple[str, str]]:
    """The metrics in the queries of the dashboard for PostgreSQL, each with its matchers."""
    text = DASHBOARD.read_text()
    queries = re.findall(r'"expr": (".*"),?$', text, re.MULTILINE)
    found = {selector for query in queries for selector in re.findall(r"(\w+){([^}]*)}", json.loads(query))}
    assert len(found) >= 15
    return found


def _selects(selector: tuple[str, str], metrics: Metrics) -> bool:
    """Whether a scrape has a sample for which Prometheus' labels job and instance are left out."""
    name, matchers = selector
    wanted = [
        (label, value if operator == "=~" else re.escape(value))
        for label, operator, value in re.findall(r'(\w+)(=~?)"([^"]*)"', matchers)
        if label not in ("job", "instance")
    ]
    # A native histogram has the name alone, and is a family of classic buckets in the text format.
    found = [*metrics.labels(name), *metrics.labels(f"{name}_count")]
    return any(all(re.fullmatch(value, labels.get(label, "")) for label, value in wanted) for labels in found)


def _blocks(agent: AgentProcess, session: Session) -> None:
    """EXPLAIN tells how many blocks a statement read, and how many of them were in the buffers."""
    statement = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT sum(abalance) FROM pgbench_accounts"
    session.ask(statement)  # the session's catalogs are cached after this
    before = scraped(agent)
    [explained] = json.loads(session.ask(statement))
    after = scraped(agent)
    parts = (explained["Plan"], explained["Planning"])
    read, hit = (sum(part[f"Shared {which} Blocks"] for part in parts) for which in ("Read", "Hit"))
    assert read > 1000
    assert grown(before, after, "postgresql_buffer_reads_total", hit="no") == read
    assert grown(before, after, "postgresql_buffer_reads_total", hit="yes") == hit
    assert durations(before, after, "postgresql_block_read")[0] == read


def _locks(agent: AgentProcess, one: Session, other: Session, third: Session) -> None:
    """Another session waits for a table, and for a row, while one holds it."""
    for holds, waits, labels in (
        (
            "LOCK TABLE pgbench_branches",
            "SELECT bid FROM pgbench_branches",
            {"lock": "relation", "mode": "AccessShare"},
        ),
        (
            "UPDATE pgbench_tellers SET tbalance = 1 WHERE tid = 3",
            "UPDATE pgbench_tellers SET tbalance = 2 WHERE tid = 3",
            {"lock": "transaction", "mode": "Share"},
        ),
    ):
        before = scraped(agent)
        one.ask("BEGIN")
        one.ask(holds)
        other.send(waits)
        eventually(lambda: third.ask("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1")
        third.ask(f"SELECT pg_sleep({HELD})")
        one.ask("COMMIT")
        other.answer()
        after = scraped(agent)
        assert grown(before, after, "postgresql_lock_wait_seconds_count") == 1
        assert grown(before, after, "postgresql_lock_wait_seconds_count", **labels) == 1
        assert grown(before, after, "postgresql_lock_wait_seconds_sum", **labels) >= HELD


def _deadlock(agent: AgentProcess, one: Session, other: Session) -> None:
    before = scraped(agent)
    update = "UPDATE pgbench_tellers SET tbalance = 1 WHERE tid = "
    for session, row in ((one, 1), (other, 2)):
        session.ask("BEGIN")
        session.ask(f"{update} {row}")
    one.send(f"{update} 2")
    other.send(f"{update} 1")
    for session in (one, other):
        session.answer()
        session.ask("ROLLBACK")
    assert grown(before, scraped(agent), "hits_total", probe="postgresql_deadlock") == 1


def _checkpoint(agent: AgentProcess, session: Session) -> None:
    """pg_stat_bgwriter tells how many checkpoints were asked for, and how many blocks they wrote."""

    def statistics() -> list[int]:
        row = session.ask("SELECT checkpoints_req, buffers_checkpoint FROM pg_stat_bgwriter")
        return list(map(int, row.split("|")))

    before, statistics_before = scraped(agent), statistics()
    session.ask("UPDATE pgbench_accounts SET abalance = 1 WHERE aid < 1000")
    session.ask("CHECKPOINT")
    eventually(lambda: statistics()[0] > statistics_before[0])
    requested, written = (now - then for now, then in zip(statistics(), statistics_before, strict=True))
    after = scraped(agent)
    assert requested == grown(before, after, "postgresql_checkpoint_seconds_count") == 1
    assert grown(before, after, "postgresql_checkpoint_seconds_count", cause="request") == 1
    assert grown(before, after, "postgresql_checkpoint_buffers_total") == written > 0


def _light_weight_locks(agent: AgentProcess, server: Server) -> None:
    """A commit that is to wait for others' holds the lock for writing meanwhile, for which another waits."""
    before = scraped(agent)
    options = "-c synchronous_commit=on -c commit_siblings=0 -c commit_delay=50000"
    with server.session(options) as one, server.session(options) as other:
        for row in range(3):
            one.send(f"UPDATE pgbench_tellers SET tbalance = {row} WHERE tid = 1")
            other.send(f"UPDATE pgbench_tellers SET tbalance = {row} WHERE tid = 2")
            one.answer()
            other.answer()
    assert grown(before, scraped(agent), "postgresql_lwlock_wait_seconds_count", lock="WALWrite") >= 1
