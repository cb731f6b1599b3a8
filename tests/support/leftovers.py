"""What tests may leave in a kernel: dynamic events, and instances of tracefs.

In a VM all of them count, since only tests run there. On a machine with other programs, which add and remove
events and instances at any time, only names that tests or their agents use count.
"""

import os
import re
from pathlib import Path

ALONE = "KPROBE_EXPORTER_VM" in os.environ
NAMES = re.compile(
    r"kprobe_exporter.*"  # the names of agents, traces and doctors
    r"|.*_under_test.*|kp_.*|capture_.*|harness_.*"
    r"|contract_test.*|example-packs|foreign|other|other_agent|otlp_faults|somebody"
)
"""Names of event groups and of instances."""


def definitions(tracefs: Path, *, alone: bool = ALONE) -> str:
    """The dynamic events that count, one a line. The kernel lacks the files of features not built in."""
    files = [tracefs / name for name in ("kprobe_events", "uprobe_events", "dynamic_events")]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines(keepends=True)]
    return "".join(line for line in lines if counts(group(line), alone=alone))


def instances(tracefs: Path, *, alone: bool = ALONE) -> list[str]:
    """The names of the instances that count."""
    names = [path.name for path in (tracefs / "instances").iterdir()]
    return sorted(name for name in names if counts(name, alone=alone))


def counts(name: str, *, alone: bool = ALONE) -> bool:
    """Whether an instance or a group with this name may belong to a test."""
    return alone or NAMES.fullmatch(name) is not None


def group(line: str) -> str:
    """The group in ``r23:GROUP/EVENT PLACE``; the kernel always prints a definition's group."""
    return line.split(" ", maxsplit=1)[0].partition(":")[2].partition("/")[0]
