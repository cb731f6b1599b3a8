"""Switches off all events of an instance one after the other, and reports the progress of a removal.

Each time the kernel disarms a probe, frees a trigger or deletes a kprobe, it waits for its readers. This
takes 10 to 70 ms under the lock of all tracing. docs/operating.md has the figures. To remove an instance with
everything on takes as long as one event after the other. But that call cannot be ended or watched, and no
other tool can trace meanwhile. So `switch_off` handles one event at a time by the writes that wait least.
Several threads are not faster, because of the lock.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from kprobe_exporter.errors import RemovalStopped
from kprobe_exporter.tracefs.files import Tracefs

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class Removal:
    """Tells how far the removal of many events is, and ends it early. Not thread-safe."""

    tell: Callable[[str], object] = log.info  # called with the progress in words
    gives_up: Callable[[], bool] = lambda: False  # whether the rest shall stay in the kernel
    pause: float = 5.0  # seconds from the beginning to the first message, and between two messages
    least: float = 1.0  # seconds in which it does not give up, so that a short removal is always finished
    _begun: float = field(default_factory=time.monotonic, init=False)
    _told: float = field(default_factory=time.monotonic, init=False)

    def begin(self) -> None:
        """Count the seconds from now on."""
        self._begun = self._told = time.monotonic()

    def each(self, things: Sequence[T], doing: str) -> Iterator[T]:
        """Yield these while ``doing`` something with each. Raises RemovalStopped."""
        for done, thing in enumerate(things):
            now = time.monotonic()
            if now - self._begun >= self.least and self.gives_up():
                raise RemovalStopped(f"{doing}, after {done} of {len(things)}")
            if now - self._told >= self.pause:
                self._told = now
                self.tell(f"{doing}: {done} of {len(things)}")
            yield thing


def events_on(files: Tracefs, instance: str) -> list[tuple[str, str]]:
    """Return system and name of each event that is enabled in an instance, also softly, by a trigger."""
    with suppress(OSError):
        words = files.read(f"{instance}/set_event").decode(errors="replace").split()
        events = [word.partition(":") for word in words]
        return [(system, name) for system, _, name in events if system and name]
    return []


def soft_trigger(system: str, name: str) -> str:
    """Return the trigger that never acts, and enables its event softly: it is counted, and not recorded.

    Its target is its own event. Every trigger that never acts would do. This one is removed by ``!`` and its
    name with one wait of the kernel. traceon takes two on 6.1, 6.12 and 6.18, because event_trigger_parse()
    waits before it frees the parsed command (kernel/trace/trace_events_trigger.c).
    """
    return f"enable_event:{system}:{name}:0"


def soft_trigger_off(system: str, name: str) -> str:
    """Return the command that removes ``soft_trigger``. If there is none the kernel waits for nothing."""
    return f"!enable_event:{system}:{name}"


def free_variables(files: Tracefs, instance: str) -> None:
    """Remove the hist triggers of an instance, so that it can be removed. Never raises.

    The kernel silently keeps a trigger whose variables another one uses (hist_unreg_all() of
    kernel/trace/trace_events_hist.c). So a second round removes those that the first one kept.
    """
    for _ in range(2):
        for system, name in events_on(files, instance):
            with suppress(OSError):
                files.truncate(f"{instance}/events/{system}/{name}/trigger")


def switch_off(files: Tracefs, instance: str, removal: Removal) -> None:
    """Stop recording at once, then switch off each event of an instance. Raises RemovalStopped.

    All triggers go first: Linux 7.2 takes twice as long to free one after it has switched off a tracepoint.
    Filters and the trigger ``stacktrace`` stay until the instance is removed, which waits less to free them.
    """
    with suppress(OSError):
        files.write(f"{instance}/tracing_on", "0")
    events = events_on(files, instance)
    for system, name in removal.each(events, "removing triggers"):
        event = f"{instance}/events/{system}/{name}"
        with suppress(OSError):
            files.truncate(f"{event}/trigger")
        with suppress(OSError):
            files.write(f"{event}/trigger", soft_trigger_off(system, name))
    for system, name in removal.each(events, "switching events off"):
        with suppress(OSError):
            files.write(f"{instance}/events/{system}/{name}/enable", "0")
