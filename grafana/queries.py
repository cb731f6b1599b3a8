"""How every query is written: which series it selects, over what range, and what a legend says."""

from typing import NamedTuple

SELECTED = ('job=~"$job"', 'instance=~"$instance"')
"""The matchers of every selector: the dashboard's variables."""

PROBE = 'probe=~"$probe"'


class Query(NamedTuple):
    """PromQL, and how its series are called: by labels in ``{{ }}``."""

    expr: str
    legend: str = ""


def of(metric: str, *matchers: str) -> str:
    """The selected series of a metric."""
    return f"{metric}{{{','.join((*SELECTED, *matchers))}}}"


def down(*matchers: str) -> str:
    """1 for each probe that should be up and is not; those that are switched off on purpose are no matter."""
    disabled = of("kprobe_exporter_probe_disabled", *matchers)
    return f"({of('kprobe_up', *matchers)} == bool 0) - {disabled}"


def rate(metric: str, *matchers: str) -> str:
    """Per second, over a range that has enough scrapes in it whatever the zoom."""
    return f"rate({of(metric, *matchers)}[$__rate_interval])"


def increase(metric: str, *matchers: str) -> str:
    """The growth within such a range."""
    return f"increase({of(metric, *matchers)}[$__rate_interval])"


def quantile(share: float, metric: str, by: str, *matchers: str) -> str:
    """A quantile of a histogram: ``share`` from 0 to 1, over all series that agree in the labels ``by``.

    The histogram is a classic or a native one.
    """
    classic = f"sum by ({', '.join(filter(None, (by, 'le')))}) ({rate(f'{metric}_bucket', *matchers)})"
    native = f"sum{f' by ({by})' if by else ''} ({rate(metric, *matchers)})"
    return f"histogram_quantile({share}, {classic}) or histogram_quantile({share}, {native})"


def spread(metric: str, *matchers: str) -> str:
    """How often each bucket of a histogram was hit, over all series: as classic buckets, else as native ones.

    A heat map shows either, but not both at once, as they are where only some agents have native ones.
    """
    classic = f"sum by (le) ({increase(f'{metric}_bucket', *matchers)})"
    return f"{classic} or on () sum ({increase(metric, *matchers)})"


def ratio(part: str, whole: str, by: str) -> str:
    """What share ``part`` is of ``whole``; nothing where there was nothing, instead of NaN."""
    return f"sum by ({by}) ({part}) / (sum by ({by}) ({whole}) > 0)"
