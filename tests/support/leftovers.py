"""What tests may leave in a kernel: dynamic events, and instances of tracefs.

A VM has nothing else in it: there, all of them count. On a machine with other programs, whose events and
instances come and go as they please, only those count that have a name which tests or their agents give.
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
"""Of groups of events, and of instances."""


def definitions(tracefs: Path, *, alone: bool = ALONE) -> str:
    """The dynamic events that count, a line each; the definitions files lack what is not built in."""
    files = [tracefs / name for name in ("kprobe_events", "uprobe_events", "dynamic_events")]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines(keepends=True)]
    return "".join(line for line in lines if counts(group(line), alone=alone))


def instances(tracefs: Path, *, alone: bool = ALONE) -> list[str]:
    """The names of the instances that count."""
    names = [path.name for path in (tracefs / "instances").iterdir()]
    return sorted(name for name in names if counts(name, alone=alone))


def counts(name: str, *, alone: bool = ALONE) -> bool:
    """Whether what has this name, or is in this group, may be a test's."""
    return alone or NAMES.fullmatch(name) is not None


def group(line: str) -> str:
    """``r23:GROUP/EVENT PLACE``: as the kernel prints it, a definition always has a group."""
    return line.split(" ", maxsplit=1)[0].partition(":")[2].partition("/")[0]
