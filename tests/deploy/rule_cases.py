"""When each alert fires, and when it barely does not: series for promtool.

A series is in promtool's notation, one sample a minute: ``0x4 1x30`` is 0 from minute 0 to 4, then 1;
``0+60x10`` is 0, 60, 120, …; ``_x5`` is five minutes without samples. All series of an agent have ``NODE``.
"""

from dataclasses import dataclass, field

NODE = 'job="kprobe-exporter",instance="node-1"'

Series = dict[str, str]
"""Samples by selector, which leaves out ``NODE``."""


def histogram(selector: str, *cumulated: int) -> Series:
    """Buckets up to 0.1, 0.25, 0.5, 1 and ∞ seconds, with the growth of each in a minute."""
    name, _, labels = selector.partition("{")
    start = "{" + labels.removesuffix("}") + ("," if labels else "")
    bounds = ("0.1", "0.25", "0.5", "1", "+Inf")
    return {
        f'{name}_bucket{start}le="{le}"}}': f"0+{count}x90"
        for le, count in zip(bounds, cumulated, strict=True)
    }


@dataclass(frozen=True)
class Quiet:
    """Series for which the alert must not fire at these minutes."""

    series: Series
    minutes: tuple[int, ...] = (15, 30, 45)


@dataclass(frozen=True)
class Case:
    """``fires``: series for which the alert fires at minute ``at`` and not one earlier, with ``labels``,
    NODE's and the rule's own labels. ``values`` replace the templates in its texts. At minute ``over``
    the alert has ended."""

    alert: str
    fires: Series
    at: int
    quiet: tuple[Quiet, ...]
    labels: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    over: int | None = None
    of_node: bool = True


HITS, MISSES = 'kprobe_hits_total{probe="open"}', 'kprobe_misses_total{probe="open"}'
LOST = "kprobe_exporter_events_lost_total"
TIME, UNACCOUNTED = 'kprobe_time_seconds_total{class="lock"}', "kprobe_time_unaccounted_seconds_total"
EVENTS = 'kprobe_exporter_events_total{probe="open"}'
ERRORS = "kprobe_return_errors_total"
FAULT = "kprobe_exporter_fault"
UNEXPLAINED = "kprobe_exporter_unexplained_events"

RETRANSMITS = 'kprobe_hits_total{probe="tcp_retransmit"}'
SEGMENTS = 'node_netstat_Tcp_OutSegs{job="node",instance="node-1:9100"}'
CONNECTS = 'kprobe_hits_total{probe="tcp_connect"}'


def agents(number: int, name: str, values: str, labels: str = "", *, first: int = 0) -> Series:
    """A series of each of ``number`` agents, from the one numbered ``first`` on."""
    rest = f",{labels}" if labels else ""
    return {
        f'{name}{{job="kprobe-exporter",instance="node-{agent}"{rest}}}': values
        for agent in range(first, first + number)
    }


OLD, NEW = 'release="5.10.0"', 'release="6.12.0"'
INFO = "kprobe_exporter_kernel_info"
OPEN_IS_DOWN_ON_THE_OLD = (
    agents(150, INFO, "1x60", NEW)
    | agents(50, INFO, "1x60", OLD, first=150)
    | agents(150, "kprobe_up", "1x60", 'probe="open"')
    | agents(50, "kprobe_up", "1 0x30", 'probe="open"', first=150)
    | agents(200, "kprobe_up", "1x60", 'probe="fsync"')
)

CASES = (
    Case(
        "KprobeExporterFleetDown",
        agents(189, "up", "1x60") | agents(11, "up", "1 0x60", first=189),
        at=6,
        labels={"job": "kprobe-exporter"},
        values={"$value | humanizePercentage": "5.5%"},
        quiet=(
            Quiet(agents(190, "up", "1x60") | agents(10, "up", "0x60", first=190)),
            # Two of three machines.
            Quiet(agents(1, "up", "1x60") | agents(2, "up", "0x60", first=1)),
            Quiet(agents(189, "up", "1x60") | agents(11, "up", "1 0x4 1x60", first=189), (5, 6, 7, 30)),
        ),
        of_node=False,
    ),
    Case(
        "KprobeExporterDown",
        {"up": "1 0x30"},
        at=6,
        quiet=(Quiet({"up": "1 0x4 1x60"}, (5, 6, 7, 30)), Quiet({'up{job="node-exporter"}': "0x60"})),
    ),
    Case(
        "KprobeExporterAbsent",
        {'up{job="node-exporter"}': "1x30"},
        at=10,
        quiet=(Quiet({"up": "0x60"}), Quiet({'up{job="monitoring/kprobe-exporter"}': "1x60"})),
        of_node=False,
    ),
    Case(
        "KprobeExporterFault",
        {f'{FAULT}{{fault="ftrace_off"}}': "0 1x30", f'{FAULT}{{fault="tracefs_gone"}}': "0x30"},
        at=6,
        labels={"fault": "ftrace_off"},
        quiet=(
            Quiet({f'{FAULT}{{fault="ftrace_off"}}': "0x60", f'{FAULT}{{fault="probe_gone"}}': "0x60"}),
            # A fault for four minutes, and faults that the agent repairs each time.
            Quiet({f'{FAULT}{{fault="kprobes_off"}}': "0 1x4 0x60"}, (5, 6, 7, 30)),
            Quiet({f'{FAULT}{{fault="probe_disabled"}}': "0 1 0 1 0 1 0 1 0 1 0x60"}, (6, 8, 10, 30)),
        ),
    ),
    Case(
        "KprobeEventsUnexplained",
        {f'{UNEXPLAINED}{{probe="open"}}': "0 3x30", f'{UNEXPLAINED}{{probe="close"}}': "0x30"},
        at=6,
        labels={"probe": "open"},
        values={"$value": "3"},
        quiet=(
            Quiet({f'{UNEXPLAINED}{{probe="open"}}': "0x60"}),
            Quiet({f'{UNEXPLAINED}{{probe="open"}}': "0 3x4 0x60"}, (5, 6, 7, 30)),
        ),
    ),
    Case(
        "KprobeProbeDown",
        OPEN_IS_DOWN_ON_THE_OLD
        | agents(50, "kprobe_exporter_probe_tripped", "0x30", 'probe="open"', first=150),
        at=6,
        labels={"job": "kprobe-exporter", "probe": "open", "release": "5.10.0"},
        values={"$value": "50"},
        of_node=False,
        quiet=(
            Quiet({f"{INFO}{{{OLD}}}": "1x60", 'kprobe_up{probe="open"}': "1 0x4 1x60"}, (5, 6, 7, 30)),
            *(
                Quiet({f"{INFO}{{{OLD}}}": "1x60", 'kprobe_up{probe="open"}': "0x60", wanted: "1x60"})
                for wanted in (
                    'kprobe_exporter_probe_tripped{probe="open"}',
                    'kprobe_exporter_probe_disabled{probe="open"}',
                )
            ),
        ),
    ),
    Case(
        "KprobeProbeTripped",
        {'kprobe_exporter_probe_tripped{probe="open"}': "0x3 1 0x60"},
        at=5,
        over=16,
        labels={"probe": "open"},
        quiet=(Quiet({'kprobe_exporter_probe_tripped{probe="open"}': "0x60"}),),
    ),
    Case(
        "KprobeProbeSampled",
        {'kprobe_exporter_probe_sampling_ratio{probe="setuid"}': "1x3 0.125 1x60"},
        at=5,
        over=16,
        labels={"probe": "setuid"},
        quiet=(Quiet({'kprobe_exporter_probe_sampling_ratio{probe="setuid"}': "1x60"}),),
    ),
    Case(
        "KprobeEventsLost",
        {EVENTS: "0+980x60", f'{LOST}{{reason="overrun"}}': "0+20x60"},
        at=11,
        values={"$value | humanizePercentage": "2%"},
        quiet=(
            Quiet({EVENTS: "0+9901x60", f'{LOST}{{reason="overrun"}}': "0+99x60"}),
            Quiet({EVENTS: "0+10x60", f'{LOST}{{reason="unreadable"}}': "0+10x60"}),
            Quiet({EVENTS: "0+10x60", f'{LOST}{{reason="unpaired"}}': "0+10x60"}),
            Quiet({EVENTS: "0x60", f'{LOST}{{reason="overrun"}}': "7x60"}),
        ),
    ),
    Case(
        "KprobeEventsUnpaired",
        {EVENTS: "0+80x60", f'{LOST}{{reason="unpaired"}}': "0+20x60"},
        at=16,
        values={"$value | humanizePercentage": "20%"},
        quiet=(
            Quiet({EVENTS: "0+901x60", f'{LOST}{{reason="unpaired"}}': "0+99x60"}),
            Quiet({EVENTS: "0+10x60", f'{LOST}{{reason="overrun"}}': "0+10x60"}),
        ),
    ),
    Case(
        "KprobeTimeUnaccounted",
        {TIME: "0+300x60", UNACCOUNTED: "0+75x60"},
        at=16,
        values={"$value | humanizePercentage": "25%"},
        quiet=(
            Quiet({TIME: "0+300x60", UNACCOUNTED: "0+59x60"}),
            Quiet({TIME: "0x60", UNACCOUNTED: "0x60"}),
        ),
    ),
    Case(
        "KprobeHitsMissed",
        {HITS: "0+95x60", MISSES: "0+5x60"},
        at=11,
        labels={"probe": "open"},
        values={"$value | humanizePercentage": "5%"},
        quiet=(Quiet({HITS: "0+9901x60", MISSES: "0+99x60"}),),
    ),
    Case(
        "KprobeReloadFailed",
        {"kprobe_exporter_config_last_reload_successful": "1 0x30"},
        at=6,
        quiet=(Quiet({"kprobe_exporter_config_last_reload_successful": "1 0x4 1x60"}, (5, 6, 7, 30)),),
    ),
    Case(
        "KprobeKernelReadStale",
        {"kprobe_exporter_kernel_read_age_seconds": "5 61x30"},
        at=6,
        values={"$value | humanizeDuration": "1m 1s"},
        quiet=(Quiet({"kprobe_exporter_kernel_read_age_seconds": "60x60"}),),
    ),
    Case(
        "KprobeSeriesOverflow",
        {'kprobe_exporter_series_overflow_total{metric="kprobe_execs_total"}': "0 0 1x60"},
        at=7,
        over=13,
        labels={"metric": "kprobe_execs_total"},
        quiet=(Quiet({'kprobe_exporter_series_overflow_total{metric="kprobe_execs_total"}': "5x60"}),),
    ),
    Case(
        "KprobeOtlpFailing",
        # The collector is away: every six minutes a batch is lost.
        {'kprobe_exporter_otlp_failed_total{signal="traces"}': "0x5 512x5 1024x5 1536x5 2048x60"},
        at=21,
        labels={"signal": "traces"},
        values={'$value | printf "%.1f"': "1.7"},
        quiet=(
            Quiet({'kprobe_exporter_otlp_failed_total{signal="traces"}': "8x60"}),
            # The collector refused all for four minutes.
            Quiet({'kprobe_exporter_otlp_failed_total{signal="traces"}': "0+30x4 120x60"}, (15, 16, 17, 30)),
            # It was away for ten minutes: a batch is lost after five of them, and another one after ten.
            Quiet({'kprobe_exporter_otlp_failed_total{signal="traces"}': "0x4 9x4 18x60"}, (19, 20, 21, 30)),
        ),
    ),
    Case(
        "KprobeTcpRetransmits",
        {'kprobe_hits_total{probe="tcp_retransmit"}': "0+606x60"},
        at=15,
        labels={"probe": "tcp_retransmit"},
        values={"$value | humanize": "10.1"},
        quiet=(
            Quiet({'kprobe_hits_total{probe="tcp_retransmit"}': "0+600x60"}),
            Quiet({'kprobe_hits_total{probe="tcp_reset_sent"}': "0+900x60"}),
            # Retransmissions for nine minutes.
            Quiet({'kprobe_hits_total{probe="tcp_retransmit"}': "0+606x9 5454x60"}, (9, 12, 15, 30)),
        ),
    ),
    Case(
        "KprobeTcpRetransmitsHigh",
        {RETRANSMITS: "0+300x60", SEGMENTS: "0+12000x60"},
        at=13,
        values={"$value | humanizePercentage": "2.5%"},
        quiet=(
            Quiet({RETRANSMITS: "0+120x60", SEGMENTS: "0+12000x60"}),
            # Of fewer than 100 segments a second.
            Quiet({RETRANSMITS: "0+300x60", SEGMENTS: "0+6000x60"}),
            Quiet({RETRANSMITS: "0+300x60", SEGMENTS.replace("node-1", "node-2"): "0+12000x60"}),
        ),
    ),
    Case(
        "KprobeCallsFail",
        {
            CONNECTS: "0+60x60",
            f'{ERRORS}{{probe="tcp_connect",errno="ECONNREFUSED"}}': "0+6x60",
            f'{ERRORS}{{probe="tcp_connect",errno="ETIMEDOUT"}}': "0+9x60",
        },
        at=11,
        labels={"probe": "tcp_connect"},
        values={"$value | humanizePercentage": "25%"},
        quiet=(
            Quiet({CONNECTS: "0+60x60", f'{ERRORS}{{probe="tcp_connect",errno="ECONNREFUSED"}}': "0+6x60"}),
            Quiet({CONNECTS: "0+60x60", f'{ERRORS}{{probe="tcp_connect",errno="EINPROGRESS"}}': "0+60x60"}),
            # One call in ten seconds.
            Quiet({CONNECTS: "0+6x60", f'{ERRORS}{{probe="tcp_connect",errno="ECONNREFUSED"}}': "0+6x60"}),
        ),
    ),
    Case(
        "KprobeFsyncSlow",
        histogram('kprobe_duration_seconds{probe="fsync"}', 90, 98, 98, 100, 100),
        at=11,
        labels={"probe": "fsync"},
        values={"$value | humanizeDuration": "750ms"},
        quiet=(
            Quiet(histogram('kprobe_duration_seconds{probe="fsync"}', 90, 98, 99, 100, 100)),
            Quiet(histogram('kprobe_duration_seconds{probe="tcp_connect"}', 0, 0, 0, 0, 100)),
            # Without calls there is no quantile.
            Quiet(histogram('kprobe_duration_seconds{probe="fsync"}', 0, 0, 0, 0, 0)),
        ),
    ),
    Case(
        "KprobeFsyncFailed",
        {f'{ERRORS}{{probe="fsync",errno="EIO"}}': "_x5 1x60"},
        at=5,
        over=16,
        labels={"probe": "fsync", "errno": "EIO"},
        quiet=(
            Quiet({f'{ERRORS}{{probe="fsync",errno="EINVAL"}}': "0+5x60"}),
            Quiet({f'{ERRORS}{{probe="open",errno="EIO"}}': "0+5x60"}),
            Quiet({f'{ERRORS}{{probe="fsync",errno="EIO"}}': "3x60"}),
        ),
    ),
    Case(
        "KprobeOomKill",
        {'kprobe_hits_total{probe="oom_kill"}': "0x4 1x60"},
        at=5,
        over=16,
        values={'$value | printf "%.0f"': "1"},
        quiet=(
            Quiet({'kprobe_hits_total{probe="oom_kill"}': "7x60"}),
            Quiet({'kprobe_hits_total{probe="exec"}': "0+9x60"}),
        ),
    ),
    Case(
        "KprobeOpenErrorsRising",
        {f'{ERRORS}{{probe="open",errno="EMFILE"}}': "0x60 0+120x60"},
        at=69,
        over=90,
        labels={"probe": "open", "errno": "EMFILE"},
        values={"$value | humanize": "2"},
        quiet=(
            Quiet({f'{ERRORS}{{probe="open",errno="EMFILE"}}': "0+120x180"}, (75, 100, 150)),
            Quiet({f'{ERRORS}{{probe="open",errno="EMFILE"}}': "0x60 0+60x60"}, (67, 69, 71, 75)),
            Quiet({f'{ERRORS}{{probe="open",errno="ENOENT"}}': "0x60 0+120x60"}, (67, 69, 71, 75)),
        ),
    ),
    Case(
        "KprobeBlockIoErrors",
        {'kprobe_block_errors_total{device="sda",errno="EIO"}': "_x5 2x60"},
        at=5,
        over=16,
        labels={"device": "sda", "errno": "EIO"},
        values={'$value | printf "%.0f"': "2"},
        quiet=(Quiet({'kprobe_block_errors_total{device="sda",errno="EIO"}': "2x60"}),),
    ),
    Case(
        "KprobeBlockIoSlow",
        histogram('kprobe_block_io_seconds{device="sda"}', 90, 98, 98, 100, 100),
        at=11,
        labels={"device": "sda"},
        values={"$value | humanizeDuration": "750ms"},
        quiet=(Quiet(histogram('kprobe_block_io_seconds{device="sda"}', 90, 98, 99, 100, 100)),),
    ),
    Case(
        "KprobeRunQueueSlow",
        histogram("kprobe_run_queue_seconds", 98, 100, 100, 100, 100),
        at=11,
        values={"$value | humanizeDuration": "175ms"},
        quiet=(Quiet(histogram("kprobe_run_queue_seconds", 99, 100, 100, 100, 100)),),
    ),
)
