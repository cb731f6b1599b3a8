"""docs/metrics.md: a row for each metric that an agent has by itself, and what its help does not say."""

from collections.abc import Iterable, Mapping

from kprobe_exporter.agent.interference import MEANING
from kprobe_exporter.aggregate.self_metrics import LOSSES, PREFIX
from tests.reference.exposition import Described, families
from tests.reference.markdown import Template, code, table

NOTES: Mapping[str, str] = {
    "kprobe_up": "Otherwise 0, also while it is switched off by `enabled: false` or because it tripped.",
    "kprobe_info": "Always 1, and present only while the probe is up. `target` is the alternative that was"
    " taken. `plan` is `count` if the kernel only counts, `events` if it records events and the agent adds"
    " them up, and `kernel` if hist triggers add them up.",
    "kprobe_hits_total": "For a call or a pair, the events that begin it. The kernel counts them, so they are"
    " right whatever is lost. Where it cannot (tracepoints, without hist triggers) the agent counts what"
    " arrives.",
    "kprobe_misses_total": "Only kprobes and kretprobes count misses, also as halves of calls and pairs: more"
    " calls at once than `maxactive`, or a firing while another probe was handled.",
    "kprobe_return_value": "Values from 0 up, of functions that return a number. Bounds: `return_buckets`."
    " None where the filter lets only errors or 0 through.",
    "kprobe_return_errors_total": "Values from −1 to −4095, by name; of a pointer, those that ERR_PTR makes.",  # noqa: RUF001
    "kprobe_duration_seconds": "Bounds: `duration_buckets`. None where a metric of the probe is a"
    " histogram of `duration`, unless calls are exported. In OpenMetrics it has exemplars if calls are"
    " exported as spans.",
    "kprobe_outstanding": "Of probes with `outstanding`, counted once a second.",
    "kprobe_outstanding_weight": "Of those whose `outstanding` has `weigh`.",
    "kprobe_worst_seconds": "Of probes with `worst` by a time. In OpenMetrics its fields are an exemplar"
    " on the bucket of the value.",
    "kprobe_worst_value": "Of probes with `worst` by another field.",
    f"{PREFIX}_build_info": "Always 1.",
    f"{PREFIX}_kernel_info": "Always 1. `release` and `machine` are those of uname(2).",
    f"{PREFIX}_events_total": "With the plan `kernel`, what the kernel has aggregated; with `count`, 0.",
    f"{PREFIX}_events_lost_total": "See [below](#what-was-lost).",
    f"{PREFIX}_series_overflow_total": "For every configured metric. The limits are `max_series` and"
    " `max_series_total`.",
    f"{PREFIX}_config_last_reload_successful": "At 0 the previous one stays in force.",
    f"{PREFIX}_config_last_reload_success_timestamp_seconds": "In seconds since 1970; at first the time of"
    " the start.",
    f"{PREFIX}_kernel_read_age_seconds": "Hits, misses and losses are this old. It grows when something in"
    " the kernel delays reads of tracefs.",
    f"{PREFIX}_ring_buffer_bytes": "As last reported by the kernel; the agent empties them ten times a"
    " second.",
    f"{PREFIX}_probe_tripped": "It is tried again after a pause, from 10 s to 10 minutes.",
    f"{PREFIX}_probe_sampling_ratio": "For probes with `critical: true`. 0: its events come from"
    " several threads, and none is recorded.",
    f"{PREFIX}_fault": "`fault` is " + ", ".join(f"`{fault}`" for fault in MEANING) + ". The agent"
    " checks once a second, a few probes at a time if there are many; most faults are repaired by then.",
    f"{PREFIX}_probe_overhead_seconds_total": "The constants: [benchmarks.md](benchmarks.md#7-a-firing). A"
    " tenth of a second per second is a tenth of a processor, spread over those threads.",
    f"{PREFIX}_unexplained_events": "For tracepoints, system calls and pairs of tracepoints without a"
    " filter: a filter in the kernel drops hits uncounted."
    " Always 0 unless something is wrong.",
    f"{PREFIX}_sessions_active": "Only with `--session.socket`.",
    f"{PREFIX}_sessions_total": "`result` is `done`, `failed`, `left`, `budget`, `stopped` or"
    " `refused`; see [sessions.md](sessions.md#found). Only with `--session.socket`.",
    f"{PREFIX}_scrape_duration_seconds": "0 at the first scrape.",
}
"""What the help does not say."""

REASONS: Mapping[str, str] = {
    "overrun": "The oldest events in a CPU's ring buffer, which was full: the agent was too slow for a burst."
    " A recorded stack counts as an event, and so does an event of the agent's own threads",
    "commit_overrun": "Events for which interrupts within interrupts had left no room in the ring buffer",
    "dropped": "Events that found no room in a ring buffer that does not overwrite; ours does",
    "unparsed": "Not an event: a damaged page; in text, what follows a newline in a name or a string",
    "unpaired": "An event of a call or a pair whose counterpart is missing or in doubt, as where a thread"
    " exits within a call. If a call has both events, but a loss lies between them, both count",
    "unreadable": "A value, not its event: the kernel could not read it, or it cannot be computed",
    "negative": "A value, not its event: it would have made a counter go down",
    "table_full": "With `aggregate: kernel`: an event that found no room in a metric's table, or in the"
    " table of open calls",
    "disabled": "Firings of a probe that was being switched off because it fired too often or was changed:"
    " the kernel still counts them, but no longer records them. Only for single events without a filter",
    "sampled": "Firings of a critical probe that were not recorded while it exceeded a limit. Counted when"
    " it is recorded whole again. Only for single events without a filter",
    "wiped": "Firings while old definitions were deleted, which happens after hundreds of changes by"
    " reloads. A lower bound, since it is unknown what a filter would have let through",
}
"""By the label ``reason``."""


def document() -> str:
    """The whole text. Raises KeyError for a reason of loss that nothing is said of."""
    found = families()
    own = [family for family in found if family.name.startswith(f"{PREFIX}_")]
    otlp = [family for family in own if family.name.startswith(f"{PREFIX}_otlp_")]
    reasons = ((code(reason), REASONS[reason]) for reason in LOSSES)
    return Template("metrics.md").filled(
        {
            "probes": _metrics(family for family in found if family not in own),
            "agent": _metrics(family for family in own if family not in otlp),
            "otlp": _metrics(otlp),
            "reasons": table(("`reason`", "what was lost"), reasons),
        }
    )


def _metrics(found: Iterable[Described]) -> str:
    rows = (
        (
            code(family.name),
            family.type,
            ", ".join(map(code, family.labels)),
            f"{family.help} {NOTES.get(family.name, '')}",
        )
        for family in found
    )
    return table(("metric", "type", "labels", "meaning"), rows)
