"""The formats of all tracepoints of the saved kernels, and their types."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.diagnose.archive import unpack
from kprobe_exporter.grammar.event_format import EventFormat, parse_format

SAVED = Path(__file__).parents[1] / "fixtures/kernels"
RELEASES = ("5.10", "6.1", "6.12", "7.2")

_EVENTS = "tracefs/events/"


@cache
def saved(release: str) -> dict[str, bytes]:
    """The files of a saved kernel."""
    return unpack((SAVED / f"{release}.tar.xz").read_bytes())


def form(release: str, event: str) -> EventFormat:
    """The format of ``SYSTEM/EVENT``."""
    return parse_format(saved(release)[f"{_EVENTS}{event}/format"].decode())


def forms(release: str) -> Iterator[tuple[str, EventFormat]]:
    """All formats, each with its ``SYSTEM/EVENT``."""
    for path, data in saved(release).items():
        if path.startswith(_EVENTS) and path.endswith("/format"):
            yield (
                path.removeprefix(_EVENTS).removesuffix("/format"),
                parse_format(data.decode(errors="replace")),
            )


@cache
def types(release: str) -> KernelTypes:
    """The types of a saved kernel, without those of its modules."""
    return KernelTypes(lambda name: saved(release)[f"sys/kernel/btf/{name}"])
