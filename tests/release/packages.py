"""Packages for the Pythons of Debian 12 and 13 alone, which are quicker to build."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path

from release import deb, payload, rpm
from release.payload import Payload
from release.targets import Target

CONFIG = Path("etc/kprobe_exporter/probes.yaml")
OWN_CONFIG = Path("etc/kprobe_exporter/own.yaml")
MINE = "probes: [{name: fork, attach: 'tracepoint:sched:sched_process_fork'}]\n"
PLACES = (
    "etc/kprobe_exporter",
    "etc/default/kprobe_exporter",
    "opt/kprobe_exporter",
    "usr/bin/kprobe-exporter",
)
"""Where a package that is gone leaves nothing."""

SCRAPE = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:10435/metrics').read().decode())"


class Packages:
    """The packages for one processor, of the same files, each built when it is first asked for."""

    def __init__(self, files: Payload, into: Path) -> None:
        self._files, self._into = files, into

    @cached_property
    def deb(self) -> Path:
        return deb.build(self._files, self._into)

    @cached_property
    def rpm(self) -> Path:
        return rpm.build(self._files, self._into)


def staged(target: Target, built: Sequence[Path]) -> AbstractContextManager[Payload]:
    """The files of a processor's packages, with the agent from one of these wheels."""
    [wheel] = [file for file in built if file.name.endswith(f"{target.platform}.whl")]
    return payload.staged(target, wheel, ["3.11", "3.13"])


def instance(name: str) -> Path:
    """The directory of an agent's instance in this machine's tracefs."""
    return Path("/sys/kernel/tracing/instances") / name
