"""The limits of a stop in the unit, the manifests and the compose file leave room for 500 probes."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROBES = 500
EVENTS = 2
"""Of a call, the probe with most events."""
SENDING_S = 5
"""What OTLP gets at the end."""

LIMITS = {
    "deploy/systemd/kprobe_exporter.service": r"^TimeoutStopSec=(\d+)s$",
    "deploy/kubernetes/base/daemonset.yaml": r"^ +terminationGracePeriodSeconds: (\d+)$",
    "deploy/docker-compose.yml": r"^ +stop_grace_period: (\d+)s\b",
}


def test_the_slowest_kernel_removes_500_probes_in_time() -> None:
    """By the figures that docs/operating.md shows of kernels that are not emulated."""
    _, _, section = (ROOT / "docs/operating.md").read_text().partition("\n## Stop\n")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    kernels = rows[0].split("|")
    native = kernels.index(" 6.18 ")
    figures = [float(number) for row in rows[1:] for number in re.findall(r"[0-9.]+", row.split("|")[native])]
    assert len(figures) >= 3
    for file, limit in LIMITS.items():
        found = re.search(limit, (ROOT / file).read_text(), re.MULTILINE)
        assert found, file
        assert int(found[1]) >= PROBES * EVENTS * max(figures) / 1000 + SENDING_S, file
