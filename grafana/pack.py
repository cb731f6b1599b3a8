"""A dashboard for each pack, from the PromQL in its comments.

The comment above a probe describes panels. Each has some sentences, a title that ends with a colon, and a
query that is indented by two more blanks::

    # A healthy disk takes less than 10 ms.
    # Syncs, 99th percentile:
    #   histogram_quantile(0.99, sum by (le) (rate(kprobe_duration_seconds_bucket{probe="fsync"}[5m])))
    - name: fsync
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from grafana.frame import build
from grafana.panels import RED, graph, number
from grafana.queries import Query, down, of, rate

PACKS = Path(__file__).parents[1] / "examples/packs"
TITLES = {
    "network": "network",
    "disk": "disks and files",
    "memory": "memory",
    "scheduler": "processes and CPUs",
    "security": "security",
    "libc": "C library",
    "openssl": "OpenSSL",
    "python": "Python",
}
"""The packs whose dashboards are made here, and their titles."""

COMMENT = re.compile(r"((?:^  #.*\n)+)  - name: (\w+)", re.MULTILINE)
PANEL = re.compile(r"((?:^\S.*\n)+)^(\S.*):\n((?:^ {2,}\S.*\n)+)", re.MULTILINE)


class Described(NamedTuple):
    """A panel as the comment of a probe describes it."""

    probe: str
    title: str
    description: str
    expr: str


def described(text: str) -> Iterator[Described]:
    """The panels in the comments of a pack, in order."""
    for comment, probe in COMMENT.findall(text):
        for prose, title, expr in PANEL.findall(re.sub(r"^  # ?", "", comment, flags=re.MULTILINE)):
            yield Described(probe, title, " ".join(prose.split()), " ".join(expr.split()))


def uid(pack: str) -> str:
    return f"kprobe-exporter-{pack}"


def dashboard(pack: str) -> Any:
    text = (PACKS / f"{pack}.yaml").read_text()
    enabled = {probe["name"]: probe.get("enabled", True) for probe in yaml.safe_load(text)["probes"]}
    header = " ".join(re.findall(r"^# (.+)", text, re.MULTILINE)).partition(". ")[0]
    probes = f'probe=~"{"|".join(enabled)}"'
    panels = list(described(text))
    on = [_panel(panel) for panel in panels if enabled[panel.probe]]
    off = [_panel(panel, off=True) for panel in panels if not enabled[panel.probe]]
    rows = {
        "At this moment": [_numbers(probes)],
        "What happens, and by whom": _pairs(on),
        "Of probes that are off by default": _pairs(off),
        "How far to trust it": [trust(probes)],
    }
    return build(
        uid(pack),
        f"Kernel probes: {TITLES[pack]}",
        f"{header}. By the probes of examples/packs/{pack}.yaml.",
        probe=None,
        rows={title: lines for title, lines in rows.items() if lines},
    )


def _pairs(panels: list[Any]) -> list[list[Any]]:
    return [panels[place : place + 2] for place in range(0, len(panels), 2)]


def _panel(panel: Described, *, off: bool = False) -> Any:
    by = re.search(r"\bby \(([^)]*)\)", panel.expr)
    labels = [label for label in re.findall(r"\w+", by[1] if by else "") if label != "le"]
    seconds = unit(panel.expr) == "s"
    note = f" Empty unless {panel.probe} is switched on." if off else ""
    return graph(
        panel.title,
        panel.description + note,
        unit(panel.expr),
        Query(query(panel.expr), " ".join(f"{{{{{label}}}}}" for label in labels) or "all"),
        minimum=None if seconds else 0,
        logarithmic=seconds,
        to_probe="probe" in labels,
    )


def query(expr: str) -> str:
    """A comment's query of the chosen agents and range; a quantile is also of native histograms."""
    chosen = re.sub(
        r"\b(kprobe_\w+)(?:{(.*?)})?", lambda found: of(found[1], *filter(None, [found[2]])), expr
    ).replace("[5m]", "[$__rate_interval]")
    native = re.sub(r"\ble, |, le\b|\ble\b", "", chosen).replace("_bucket{", "{")
    return f"{chosen} or {native}" if "_bucket{" in chosen else chosen


def unit(expr: str) -> str:
    """The unit of a query's result.

    The rate of a sum of seconds is how many threads wait at once. The packs' sums of return values are bytes.
    """
    units = {
        "_seconds_bucket": "s",
        " / ": "bytes",
        r"_seconds_sum|increase\(": "short",
        "_bytes_sum|_bytes_total|_return_value_sum": "Bps",
    }
    return next((found for pattern, found in units.items() if re.search(pattern, expr)), "cps")


def _numbers(probes: str) -> list[Any]:
    return [
        number(
            "Probes up",
            "Probes of this pack that are installed and enabled, on all agents together.",
            "short",
            Query(f"sum({of('kprobe_up', probes)})", "up"),
        ),
        number(
            "Probes down",
            "Probes of this pack that a kernel refused, or that tripped. The agent's log says why.",
            "short",
            Query(f"sum({down(probes)})", "down"),
            limits={1: RED},
        ),
        number(
            "Hits",
            "Firings of this pack's probes per second, before their filters.",
            "cps",
            Query(f"sum({rate('kprobe_hits_total', probes)})", "hits"),
        ),
    ]


def trust(probes: str) -> list[Any]:
    """Two panels about the probes that a matcher selects: whether they are off, and their cost."""
    cost = rate("kprobe_exporter_probe_overhead_seconds_total", probes)
    return [
        graph(
            "Tripped",
            "1 while a probe is off because it fired more often than its limit: its counts are too low, and a"
            " higher limit helps.",
            "short",
            Query(
                f"topk(10, max by (instance, probe) ({of('kprobe_exporter_probe_tripped', probes)}))",
                "{{instance}} {{probe}}",
            ),
            to_probe=True,
        ),
        graph(
            "Overhead",
            "An estimate of the processor time that each probe costs the probed threads: 100 % is one"
            " processor.",
            "percentunit",
            Query(f"topk(10, sum by (probe) ({cost}))", "{{probe}}"),
            to_probe=True,
        ),
    ]
