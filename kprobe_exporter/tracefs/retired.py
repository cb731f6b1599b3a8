"""Definitions of ours that stay in the kernel though nothing uses them, until they are asked for again.

Deleting a dynamic event wipes the unread buffer of every instance in which it was ever enabled, softly
too: event_remove() marks the instance, dyn_event_release() resets what is marked (kernel/trace/
trace_events.c, trace_dynevent.c). So what was in use is disabled, which costs nothing more but some 10 KB
of the kernel's memory, and deleted when the agent ends, or when too many have gathered.
"""

from typing import NamedTuple

from kprobe_exporter.model.values import ProbeSpec


class Definition(NamedTuple):
    """What makes two definitions the same: the line without its names, and the name that was wished for."""

    file: str
    verb: str
    body: str
    wish: str

    @classmethod
    def of(cls, spec: ProbeSpec) -> "Definition":
        assert spec.file is not None
        return cls(spec.file, spec.verb, spec.body, spec.layout.event)


class Retired:
    """The events of retired definitions, the oldest first. Not thread-safe: the instance's owner has it."""

    def __init__(self) -> None:
        self._definitions: dict[str, Definition] = {}

    def __len__(self) -> int:
        return len(self._definitions)

    def put(self, event: str, definition: Definition) -> None:
        """Nothing uses this event any more."""
        self._definitions[event] = definition

    def take(self, definition: Definition) -> str | None:
        """An event that is defined in the very same way, to be used again; None if there is none."""
        same = (event for event, one in self._definitions.items() if one == definition)
        event = next(same, None)
        if event is not None:
            self.forget(event)
        return event

    def surplus(self, most: int) -> list[str]:
        """The oldest that are over ``most``."""
        return list(self._definitions)[: max(0, len(self._definitions) - most)]

    def forget(self, event: str) -> None:
        """It is not in the kernel any more, or used again."""
        del self._definitions[event]
