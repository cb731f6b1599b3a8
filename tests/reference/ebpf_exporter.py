"""docs/ebpf-exporter.md: metrics of examples/ebpf_exporter, their labels, and queries from their comments."""

import re
from collections.abc import Iterator
from pathlib import Path

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from tests.reference.markdown import Template, code, table

DIRECTORY = Path(__file__).parents[2] / "examples/ebpf_exporter"
FILES = sorted(DIRECTORY.glob("*.yaml"))

_QUERY = re.compile(r"^#   (\S.*)$", re.MULTILINE)
"""A query in the comment that a file begins with."""


def document() -> str:
    rows = [
        [code(path.name), "; ".join(metrics(path)), "; ".join(map(code, queries(path))) or "none"]
        for path in FILES
    ]
    shown = table(["file", "metrics with their labels", "queries"], rows)
    return Template("ebpf_exporter.md").filled({"examples": shown})


def queries(path: Path) -> list[str]:
    """The queries in the comment at the beginning of a file."""
    return _QUERY.findall(path.read_text().partition("\nprobes:")[0])


def metrics(path: Path) -> Iterator[str]:
    """Yield each metric as NAME{LABELS}; the probe's hits where there is none, and what is exported."""
    seen = set()
    for probe in load([path], DECODERS).probes:
        names = [
            f"kprobe_{one.name}{{{', '.join(label.name for label in one.labels)}}}" for one in probe.metrics
        ]
        if probe.export:
            names.append(f"{'spans' if probe.export.signal == 'span' else 'log records'} of {probe.name}")
        if not names:
            names = [f'kprobe_hits_total{{probe="{probe.name}"}}']
        for name in names:
            shown = code(name.removesuffix("{}")) if name.startswith("kprobe_") else name
            if shown not in seen:
                seen.add(shown)
                yield shown
