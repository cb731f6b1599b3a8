"""The settings of an instance as the agent left them, so that it notices what another process changes.

Among them are the filters of tracepoints that several of our probes read.
"""

import re
from contextlib import suppress

from kprobe_exporter.tracefs.files import Tracefs

OPTIONS = "trace_options"
"""The file that shows all of an instance's options, NAME or noNAME on each line."""

IDS = ("set_event_notrace_pid", "set_event_pid")
"""Files of thread ids. Empty ones are watched; the kernel itself keeps the others up to date."""

SETTINGS = ("trace_clock", OPTIONS, "tracing_cpumask", "buffer_size_kb", *IDS)
"""Files that decide what an instance records, and how. The clock is first: writing it clears the buffer. The
kernel refuses another tracer (EBUSY) as long as the agent reads."""


class KeptSettings:
    """The contents of one instance's files after the agent's last change. Not thread-safe."""

    def __init__(self, files: Tracefs, instance: str) -> None:
        self._files, self._instance = files, instance
        self._kept: dict[str, bytes] = {}

    def keep(self) -> None:
        """Take all settings as they are now for the agent's own."""
        for name in SETTINGS:
            self._keep(name)

    def written(self, path: str) -> None:
        """Take a setting for the agent's own again, after the agent has written a file of the instance."""
        name = OPTIONS if path.startswith("options/") else path
        if name in self._kept:
            self._keep(name)

    def changed(self) -> dict[str, list[str]]:
        """Return the changed settings, each with what has to be written to undo that. Raises OSError."""
        return {name: words for name in self._kept if (words := self._undoing(name))}

    def restore(self, changed: dict[str, list[str]]) -> None:
        """Undo changes as far as the kernel lets it. The next look tries again."""
        for name, words in changed.items():
            for word in words:
                with suppress(OSError):
                    if name in IDS:
                        self._files.truncate(f"{self._instance}/{name}")
                    else:
                        self._files.write(f"{self._instance}/{name}", word)

    def _keep(self, name: str) -> None:
        with suppress(OSError):  # a kernel may lack one
            self._kept[name] = self._read(name)

    def _undoing(self, name: str) -> list[str]:
        kept, now = self._kept[name], self._read(name)
        if kept == now:
            return []
        if name == OPTIONS:  # a tracer may have added some, and taken its own away
            there = set(now.decode().split())
            return [word for word in kept.decode().split() if _negated(word) in there and word not in there]
        if name in IDS:
            return [] if kept.strip() else [""]
        chosen = re.search(rb"\[(\w[\w-]*)\]", kept)  # of the clocks, which are all shown
        return [(chosen[1] if chosen else kept.strip()).decode()]

    def _read(self, name: str) -> bytes:
        return self._files.read(f"{self._instance}/{name}")


def _negated(option: str) -> str:
    return option.removeprefix("no") if option.startswith("no") else f"no{option}"


ALL_PASS = "0"
"""The text that removes an event's filter (Documentation/trace/events.rst)."""

LONGEST = 4000
"""Bytes of a filter; the kernel takes less than a page (event_filter_write, kernel/trace/trace_events.c)."""

SHOWN = "show_event_filters"
"""In an instance, the filters of all events, a line ``SYSTEM:EVENT  FILTER`` each (since Linux 7.0)."""


def parse_filters(text: str) -> dict[str, str]:
    """Return the filters in the text of SHOWN by ``SYSTEM:EVENT`` (t_show_filters(), trace_events.c)."""
    rows = (line.split(maxsplit=1) for line in text.splitlines())
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}


class SharedFilters:
    """The records that the kernel has to let through of each tracepoint, by the probes that record it.

    An event has one filter in an instance. So the kernel lets through what any of the probes needs, and the
    agent, which evaluates each probe's own filter, takes that apart. Not thread-safe.
    """

    def __init__(self) -> None:
        self._needed: dict[str, list[str | None]] = {}

    def add(self, event: str, text: str | None) -> str | None:
        """Add what one more probe needs; None for every event. Return the filter to write if it changed."""
        before = self.text(event)
        self._needed.setdefault(event, []).append(text)
        return self._changed(event, before)

    def remove(self, event: str, text: str | None) -> str | None:
        """Undo one ``add``. Return the filter to write if it changed."""
        before, needed = self.text(event), self._needed[event]
        needed.remove(text)
        if not needed:
            del self._needed[event]
        return self._changed(event, before)

    def text(self, event: str) -> str:
        """Return the filter to write; ALL_PASS for none."""
        needed = dict.fromkeys(self._needed.get(event, ()))
        each = [text for text in needed if text is not None]
        if len(each) < len(needed) or not each:
            return ALL_PASS
        whole = each[0] if len(each) == 1 else " || ".join(f"({text})" for text in each)
        return whole if len(whole.encode()) <= LONGEST or len(each) == 1 else ALL_PASS

    def _changed(self, event: str, before: str) -> str | None:
        text = self.text(event)
        return None if text == before else text
