"""The filters of tracepoints that several probes of ours read: the kernel has one for all of them."""

ALL_PASS = "0"
"""What removes an event's filter (Documentation/trace/events.rst)."""

LONGEST = 4000
"""Bytes of a filter; the kernel takes less than a page (event_filter_write, kernel/trace/trace_events.c)."""

SHOWN = "show_event_filters"
"""In an instance, the filters of all events, a line ``SYSTEM:EVENT  FILTER`` each (since Linux 7.0)."""


def parse_filters(text: str) -> dict[str, str]:
    """Return the filters in the text of SHOWN by ``SYSTEM:EVENT`` (t_show_filters(), trace_events.c)."""
    rows = (line.split(maxsplit=1) for line in text.splitlines())
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}


class SharedFilters:
    """What the kernel has to let through of each tracepoint, by the probes that record it.

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
