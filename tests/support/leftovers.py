"""What tests may leave in a kernel: dynamic events, and instances of tracefs.

In a VM all of them count, since only tests run there. On a machine with other programs, which add and remove
events and instances at any time, only names that tests or their agents use count.

``python -m tests.support.leftovers`` removes what tests left on this machine that were killed.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kprobe_exporter.tracefs.definitions import Defined, delete, list_definitions
from kprobe_exporter.tracefs.files import MountedTracefs, Tracefs
from kprobe_exporter.tracefs.ownership import MARKER
from tests.support import private_tracefs

ALONE = "KPROBE_EXPORTER_VM" in os.environ
NAMES = re.compile(
    r"kprobe_exporter.*"  # the names of agents, traces and doctors
    r"|.*_under_test.*|kp_.*|capture_.*|harness_.*"
    r"|contract_test.*|example-packs|foreign|hostile_logs|hostile_web|kpe_fields|native_histograms"
    r"|oracle_\d+|other|other_agent|otlp_.*|pid_namespace|slow_clients|somebody"
)
"""Names of event groups and of instances."""


def definitions(tracefs: Path, *, alone: bool = ALONE) -> str:
    """The dynamic events that count, one a line. The kernel lacks the files of features not built in."""
    files = [tracefs / name for name in ("kprobe_events", "uprobe_events", "dynamic_events")]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines(keepends=True)]
    return "".join(line for line in lines if counts(group(line), alone=alone))


def list_probes(files: Tracefs) -> list[Defined]:
    """The dynamic events without the markers, which show whose a group is."""
    return [defined for defined in list_definitions(files) if defined.event != MARKER]


def instances(tracefs: Path, *, alone: bool = ALONE) -> list[str]:
    """The names of the instances that count."""
    names = [path.name for path in (tracefs / "instances").iterdir()]
    return sorted(name for name in names if counts(name, alone=alone))


@contextmanager
def unchanged(tracefs: Path) -> Iterator[None]:
    """Assert that definitions and instances are the same at the end."""
    before = definitions(tracefs), instances(tracefs)
    yield
    after = definitions(tracefs), instances(tracefs)
    assert after == before, f"{before} became {after}"


def counts(name: str, *, alone: bool = ALONE) -> bool:
    """Whether an instance or a group with this name may belong to a test."""
    return alone or NAMES.fullmatch(name) is not None


def group(line: str) -> str:
    """The group in ``r23:GROUP/EVENT PLACE``; the kernel always prints a definition's group."""
    return line.split(" ", maxsplit=1)[0].partition(":")[2].partition("/")[0]


def remove(tracefs: Path) -> list[str]:
    """Remove the instances that count and the definitions of their groups; return the names of what is gone.

    The kernel refuses that for an instance whose files a process has open, such as a live agent's: it stays,
    with its definitions. Removing an instance disables the events in it.
    """
    files, gone = MountedTracefs(tracefs), []
    for name in instances(tracefs, alone=False):
        with suppress(OSError):
            (tracefs / "instances" / name).rmdir()
            gone.append(f"instances/{name}")
    alive = instances(tracefs, alone=False)
    for defined in list_definitions(files):
        dead = counts(defined.group, alone=False) and defined.group not in alive
        if dead and delete(files, defined.group, defined.event) is None:
            gone.append(f"{defined.group}/{defined.event}")
    return gone


if __name__ == "__main__":
    if not (reason := private_tracefs.provide()):
        for removed in remove(private_tracefs.TRACEFS):
            print(f"removed {removed}, which a killed test left")
    sys.exit(reason)
