"""Our definitions that stay in the kernel although no probe uses them, until they are needed again.

Deleting a dynamic event clears the unread buffer of every instance in which it was ever enabled, even
softly: event_remove() marks the instance, dyn_event_release() resets the marked ones (kernel/trace/
trace_events.c, trace_dynevent.c). So a definition that was in use is only disabled, and then costs some
10 KB of kernel memory. It is deleted when the agent ends, or when there are too many.
"""

from typing import NamedTuple

from kprobe_exporter.model.values import ProbeSpec


class RetiredDefinition(NamedTuple):
    """What makes two definitions the same: the line without its names, and the requested event name.

    A uprobe's definition keeps the ``inode`` that its path named when it was written (kern_path() in
    kernel/trace/trace_uprobe.c), so the same line for a file that was replaced since is another definition.
    """

    file: str
    verb: str
    body: str
    preferred_name: str
    inode: tuple[int, int] | None = None

    @classmethod
    def of(cls, spec: ProbeSpec) -> "RetiredDefinition":
        assert spec.file is not None
        return cls(spec.file, spec.verb, spec.body, spec.layout.event, spec.inode)


class Retired:
    """The events of retired definitions, oldest first. Not thread-safe; the instance's owner uses it."""

    def __init__(self) -> None:
        self._definitions: dict[str, RetiredDefinition] = {}

    def __len__(self) -> int:
        return len(self._definitions)

    def put(self, event: str, definition: RetiredDefinition) -> None:
        """Add an event that no probe uses any more."""
        self._definitions[event] = definition

    def take(self, definition: RetiredDefinition) -> str | None:
        """Remove and return an event with this very definition, to be used again; None if there is none."""
        same = (event for event, one in self._definitions.items() if one == definition)
        event = next(same, None)
        if event is not None:
            self.forget(event)
        return event

    def surplus(self, most: int) -> list[str]:
        """Return the oldest events in excess of ``most``."""
        return list(self._definitions)[: max(0, len(self._definitions) - most)]

    def forget(self, event: str) -> None:
        """Remove an event that is no longer in the kernel, or that is used again."""
        del self._definitions[event]
