"""The fourth dashboard: PostgreSQL, by the probes of examples/packs/postgresql.yaml."""

from typing import Any

from grafana.frame import build
from grafana.pack import trust
from grafana.panels import RED, YELLOW, buckets, graph, number
from grafana.queries import Query, down, increase, of, quantile, rate, ratio, spread

UID = "kprobe-exporter-postgresql"

OF_PACK = 'probe=~"postgresql_.+"'
ENDS = 'probe=~"postgresql_(commit|rollback)"'
HIT = 'hit="yes"'
TIMED = 'probe=~"postgresql_(query|simple_query|plan|transaction)"'


def dashboard() -> Any:
    return build(
        UID,
        "Kernel probes: PostgreSQL",
        "What PostgreSQL commits and rolls back, how long its statements take, and what they wait for, by the"
        " probes of examples/packs/postgresql.yaml.",
        probe=None,
        rows={
            "At this moment": [_numbers()],
            "Transactions and statements": [
                [_transactions(), _at_once()],
                [_durations(), _means()],
                [_heatmap()],
            ],
            "Waits": [[_lock_waits(), _long_lock_waits()], [_lwlock_waits(), _deadlocks()]],
            "Blocks and checkpoints": [
                [_reads(), _read_durations()],
                [_hit_ratio(), _written()],
                [_checkpoints(), _checkpoint_durations()],
            ],
            "How far to trust it": [trust(OF_PACK)],
        },
    )


def _of(probe: str) -> str:
    return f'probe="postgresql_{probe}"'


def _numbers() -> list[Any]:
    rolled_back = rate("kprobe_hits_total", _of("rollback"))
    return [
        number(
            "Transactions",
            "Transactions that ended per second, committed and rolled back.",
            "cps",
            Query(f"sum({rate('kprobe_hits_total', ENDS)})", "transactions"),
        ),
        number(
            "Rolled back",
            "The share of transactions that were rolled back, by an error or by their program.",
            "percentunit",
            Query(f"sum({rolled_back}) / (sum({rate('kprobe_hits_total', ENDS)}) > 0)", "rolled back"),
            limits={0.05: YELLOW, 0.5: RED},
        ),
        number(
            "Statements at once",
            "Statements that were being executed at the same time, on average.",
            "short",
            Query(f"sum({rate('kprobe_duration_seconds_sum', _of('query'))})", "statements"),
        ),
        number(
            "Waiting for locks",
            "Statements that were waiting for a lock of another transaction at the same time, on average."
            " Waits that have not ended are not included.",
            "short",
            Query(f"sum({rate('kprobe_postgresql_lock_wait_seconds_sum')})", "waiting"),
            limits={1: YELLOW},
        ),
        number(
            "Deadlocks",
            "Deadlocks in the last hour: in each of them PostgreSQL cancelled a statement.",
            "short",
            Query(f"sum(increase({of('kprobe_hits_total', _of('deadlock'))}[1h]))", "deadlocks"),
            limits={1: RED},
        ),
        number(
            "Probes down",
            "Probes of PostgreSQL that a kernel refused, or that tripped. An agent on a machine without"
            " PostgreSQL has none.",
            "short",
            Query(f"sum({down(OF_PACK)})", "down"),
            limits={1: RED},
        ),
    ]


def _transactions() -> Any:
    return graph(
        "Transactions by machine",
        "Transactions that were committed and rolled back per second, on the ten busiest machines.",
        "cps",
        Query(
            f"topk(10, sum by (instance, probe) ({rate('kprobe_hits_total', ENDS)}))",
            "{{instance}} {{probe}}",
        ),
        to_probe=True,
    )


def _at_once() -> Any:
    return graph(
        "Statements at once by machine",
        "Statements that were being executed at the same time, on average: as many processors, disks and"
        " locks are wanted.",
        "short",
        Query(
            f"topk(10, sum by (instance) ({rate('kprobe_duration_seconds_sum', _of('query'))}))",
            "{{instance}}",
        ),
    )


def _durations() -> Any:
    return graph(
        "Durations, 99th percentile",
        "The time that one in a hundred exceeds: of executing a statement; and, where their probes are"
        " switched on, of a message of the simple protocol, of planning, and of a transaction until its"
        " commit.",
        "s",
        Query(quantile(0.99, "kprobe_duration_seconds", "probe", TIMED), "{{probe}}"),
        minimum=None,
        logarithmic=True,
        to_probe=True,
    )


def _means() -> Any:
    total, count = (rate(f"kprobe_duration_seconds_{part}", TIMED) for part in ("sum", "count"))
    return graph(
        "Durations, mean",
        "The mean time of the same.",
        "s",
        Query(ratio(total, count, "probe"), "{{probe}}"),
        minimum=None,
        logarithmic=True,
        to_probe=True,
    )


def _heatmap() -> Any:
    return buckets(
        "Durations of statements",
        "How long statements were executed: the deeper the colour, the more of them fell between two bounds"
        " of duration_buckets.",
        "s",
        Query(spread("kprobe_duration_seconds", _of("query")), "{{le}}"),
    )


def _lock_waits() -> Any:
    waits = rate("kprobe_postgresql_lock_wait_seconds_sum")
    return graph(
        "Waiting for locks at once",
        "Statements that were waiting at the same time, on average, by what is locked and in which mode they"
        " want it: transaction is a row that another one has changed, AccessExclusive an ALTER TABLE.",
        "short",
        Query(f"topk(10, sum by (lock, mode) ({waits}))", "{{lock}} {{mode}}"),
        stacked=True,
    )


def _long_lock_waits() -> Any:
    return graph(
        "Waits for locks, 99th percentile",
        "The time that one in a hundred waits for a lock exceeds, by what is locked.",
        "s",
        Query(quantile(0.99, "kprobe_postgresql_lock_wait_seconds", "lock"), "{{lock}}"),
        minimum=None,
        logarithmic=True,
    )


def _lwlock_waits() -> Any:
    waits = rate("kprobe_postgresql_lwlock_wait_seconds_sum")
    return graph(
        "Waiting for light-weight locks at once",
        "Processes that were waiting for a lock of shared memory at the same time, on average, by its name."
        " Empty unless postgresql_lwlock_wait is switched on.",
        "short",
        Query(f"topk(10, sum by (lock) ({waits}))", "{{lock}}"),
        stacked=True,
    )


def _deadlocks() -> Any:
    return graph(
        "Deadlocks by machine",
        "Deadlocks that PostgreSQL found per interval.",
        "short",
        Query(f"sum by (instance) ({increase('kprobe_hits_total', _of('deadlock'))})", "{{instance}}"),
    )


def _reads() -> Any:
    return graph(
        "Reads of blocks",
        "Reads of table and index files per second, because a block was not in PostgreSQL's buffers, on the"
        " ten busiest machines.",
        "cps",
        Query(
            f"topk(10, sum by (instance) ({rate('kprobe_hits_total', _of('block_read'))}))", "{{instance}}"
        ),
    )


def _read_durations() -> Any:
    return graph(
        "Reads of blocks, 99th percentile",
        "The time that one in a hundred such reads exceeds: microseconds from the page cache, more from a"
        " disk.",
        "s",
        Query(
            f"topk(10, {quantile(0.99, 'kprobe_duration_seconds', 'instance', _of('block_read'))})",
            "{{instance}}",
        ),
        minimum=None,
        logarithmic=True,
    )


def _hit_ratio() -> Any:
    reads = "kprobe_postgresql_buffer_reads_total"
    return graph(
        "Blocks found in the buffers",
        "The share of blocks that statements found in PostgreSQL's buffers, on the ten machines where it is"
        " lowest. Empty unless postgresql_buffer_read is switched on.",
        "percentunit",
        Query(
            f"bottomk(10, {ratio(rate(reads, HIT), rate(reads), 'instance')})",
            "{{instance}}",
        ),
    )


def _written() -> Any:
    return graph(
        "Blocks written by checkpoints",
        "Changed blocks that checkpoints began to write, per interval.",
        "short",
        Query(
            f"sum by (instance) ({increase('kprobe_postgresql_checkpoint_buffers_total')})", "{{instance}}"
        ),
    )


def _checkpoints() -> Any:
    ended = increase("kprobe_postgresql_checkpoint_seconds_count")
    return graph(
        "Checkpoints by cause",
        "Checkpoints that ended per interval. time is normal; many of wal mean that max_wal_size is too"
        " small.",
        "short",
        Query(f"sum by (cause) ({ended})", "{{cause}}"),
        stacked=True,
    )


def _checkpoint_durations() -> Any:
    total, count = (increase(f"kprobe_postgresql_checkpoint_seconds_{part}") for part in ("sum", "count"))
    return graph(
        "Checkpoints, mean duration",
        "How long checkpoints took, by cause. One that is spread over checkpoint_completion_target takes long"
        " on purpose.",
        "s",
        Query(ratio(total, count, "cause"), "{{cause}}"),
    )
