"""Cases for each recording rule: series for promtool, in the notation of rule_cases.py."""

from tests.deploy.rule_cases import ERRORS, EVENTS, HITS, LOST, MISSES, Series, agents, histogram


def slow_on_one_of_three(selector: str) -> Series:
    """A histogram of three agents, of which together one observation in fifty is above half a second."""
    found: Series = {}
    for agent, quick in enumerate((100, 100, 94)):
        for series, values in histogram(selector, 50, quick, quick, 100, 100).items():
            name, _, labels = series.partition("{")
            found |= agents(1, name, values, labels.removesuffix("}"), first=agent)
    return found


RECORDED: dict[str, tuple[Series, dict[str, float]]] = {
    "instance_probe:kprobe_hits:rate5m": ({HITS: "0+60x60"}, {'probe="open"': 1}),
    "instance_probe_errno:kprobe_return_errors:rate5m": (
        {f'{ERRORS}{{probe="open",errno="EIO"}}': "0+30x60"},
        {'probe="open",errno="EIO"': 0.5},
    ),
    "instance_probe:kprobe_return_errors:ratio_rate5m": (
        {
            HITS: "0+60x60",
            f'{ERRORS}{{probe="open",errno="EIO"}}': "0+10x60",
            f'{ERRORS}{{probe="open",errno="EMFILE"}}': "0+5x60",
            # No calls: the rule gives no series instead of NaN.
            'kprobe_hits_total{probe="fsync"}': "0x60",
            f'{ERRORS}{{probe="fsync",errno="EIO"}}': "0x60",
        },
        {'probe="open"': 0.25},
    ),
    "instance_probe:kprobe_duration_seconds:p50_rate5m": (
        histogram('kprobe_duration_seconds{probe="open"}', 50, 100, 100, 100, 100),
        {'probe="open"': 0.1},
    ),
    "instance_probe:kprobe_duration_seconds:p99_rate5m": (
        histogram('kprobe_duration_seconds{probe="open"}', 50, 98, 98, 100, 100),
        {'probe="open"': 0.75},
    ),
    "instance_device:kprobe_block_io_seconds:p99_rate5m": (
        histogram('kprobe_block_io_seconds{device="sda"}', 50, 98, 98, 100, 100),
        {'device="sda"': 0.75},
    ),
    "instance:kprobe_run_queue_seconds:p99_rate5m": (
        histogram("kprobe_run_queue_seconds", 50, 98, 98, 100, 100),
        {"": 0.75},
    ),
    "instance_probe:kprobe_misses:ratio_rate5m": (
        {HITS: "0+30x60", MISSES: "0+10x60"},
        {'probe="open"': 0.25},
    ),
    "instance:kprobe_exporter_events_lost:ratio_rate5m": (
        {
            EVENTS: "0+1200x60",
            'kprobe_exporter_events_total{probe="fsync"}': "0+600x60",
            f'{LOST}{{reason="overrun"}}': "0+360x60",
            f'{LOST}{{reason="dropped"}}': "0+240x60",
            f'{LOST}{{reason="negative"}}': "0+6000x60",
            f'{LOST}{{reason="unpaired"}}': "0+6000x60",
        },
        {"": 0.25},
    ),
    "instance:kprobe_exporter_events_lost:unpaired_ratio_rate5m": (
        {
            EVENTS: "0+1800x60",
            f'{LOST}{{reason="unpaired"}}': "0+600x60",
            f'{LOST}{{reason="overrun"}}': "0+6000x60",
        },
        {"": 0.25},
    ),
    "probe:kprobe_hits:rate5m": (
        agents(200, "kprobe_hits_total", "0+60x60", 'probe="open"'),
        {'probe="open"': 200},
    ),
    "probe_errno:kprobe_return_errors:rate5m": (
        agents(200, ERRORS, "0+30x60", 'probe="open",errno="EIO"'),
        {'probe="open",errno="EIO"': 100},
    ),
    "probe:kprobe_duration_seconds:p99_rate5m": (
        slow_on_one_of_three('kprobe_duration_seconds{probe="open"}'),
        {'probe="open"': 0.75},
    ),
    "job:kprobe_run_queue_seconds:p99_rate5m": (slow_on_one_of_three("kprobe_run_queue_seconds"), {"": 0.75}),
    "job:kprobe_exporter_events_lost:max_ratio_rate5m": (
        agents(199, "kprobe_exporter_events_total", "0+60x60", 'probe="open"')
        | agents(199, LOST, "0x60", 'reason="overrun"')
        | agents(1, "kprobe_exporter_events_total", "0+60x60", 'probe="open"', first=199)
        | agents(1, LOST, "0+20x60", 'reason="overrun"', first=199),
        {"": 0.25},
    ),
}
"""Series, and the rule's results at minute 30 by the labels other than those of the agent."""
