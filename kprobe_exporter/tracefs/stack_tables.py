"""The hist trigger by which the kernel counts the stacks of an event: attached, read and detached."""

from collections.abc import Mapping
from functools import lru_cache

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.model.hist import HistReading
from kprobe_exporter.model.stacks import NOTHING, STACK_KEYS, Stack, StackReading, StackTable, Weight
from kprobe_exporter.tracefs.hist_tables import Spelled, parse_hist, share_name
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.refusal import why


class StackTrigger:
    """A hist trigger of ours, keyed by the kernel's stack, on one event.

    Linux keeps 16 frames (HIST_STACKTRACE_DEPTH of kernel/trace/trace.h). A firing takes one search of a hash
    table, and no event is written. Reading takes longer, as the kernel looks up the name of each frame. One
    thread may read while another attaches and detaches.
    """

    def __init__(self, instance: Instance, event: str, table: StackTable) -> None:
        self._instance = instance
        self._event = event
        self._table = table
        self._attached: tuple[str, Spelled] | None = None

    def attach(self) -> None:
        """Attach to ``events/SYSTEM/EVENT``. Raises ProbeRefused."""
        table, first = self._table, None
        for key in STACK_KEYS:
            trigger = table.trigger(key)
            try:
                self._instance.write(f"{self._event}/trigger", trigger)
            except FileExistsError:
                raise ProbeRefused("another probe counts the same stacks of this event.") from None
            except OSError as error:
                first = first or why(self._instance.files, error, trigger, f"{self._instance.path}/error_log")
                continue
            spelled = key, f"hitcount,{table.value}" if table.value else "hitcount", table.condition
            self._instance.share(share_name(self._event, spelled))
            self._attached = trigger, spelled
            return
        raise ProbeRefused(f"the hist trigger '{table.trigger(STACK_KEYS[0])}' is refused: {first}.")

    def read(self) -> StackReading | None:
        """Return what was counted since it was attached; None if it is not there. Raises OSError."""
        if self._attached is None:
            return None
        shown = parse_hist(self._instance.read(f"{self._event}/hist"))
        reading = next((one.reading for one in shown if one[:3] == self._attached[1]), None)
        return None if reading is None else StackReading(reading.dropped, _stacks(reading))

    def pop_triggers(self) -> list[tuple[str, Spelled]]:
        """Return its trigger for ``detach``, once; it is not attached any more then."""
        attached, self._attached = self._attached, None
        return [] if attached is None else [attached]


def _stacks(reading: HistReading) -> Mapping[Stack, Weight]:
    """Return the rows by the names of functions: two places in one function are one frame."""
    found: dict[Stack, Weight] = {}
    for (text,), (hits, total) in reading.rows.items():
        assert isinstance(text, bytes)
        stack = tuple([_function(line) for line in text.splitlines()])
        found[stack] = found.get(stack, NOTHING).plus(Weight(hits, total))
    return found


@lru_cache(1 << 14)
def _function(line: bytes) -> bytes:
    """Return the function of a line such as ``do_sys_open+0x1f/0x30 [module]``."""
    return line.split()[0].partition(b"+")[0]
