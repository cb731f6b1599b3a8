"""Records as lines in the kernel's style: one a call, for which the kernel itself has two lines."""

from kprobe_exporter.aggregate.recipes import getter
from kprobe_exporter.errors import name_text
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.records import CALLER, COMMON_COMM, CPU, TID, TIME, VALUES, Layout, Record
from kprobe_exporter.model.values import Arg, Value, is_error
from kprobe_exporter.trace.record_lines import Frames, Show

HEADER = (
    "#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n"
    "#              | |         |   |||||     |         |"
)
FLAGS = "....."
"""Stands where the kernel prints an event's flags, which a record of two events does not have."""

UNREADABLE = "(fault)"
UNNAMED = b"<...>"
UNITS = ((10**9, "s"), (10**6, "ms"), (1000, "us"), (1, "ns"))


def show_line(event: str, layout: Layout) -> Show:
    """Return the function that makes a line of a record of this layout.

    Strings of programs are escaped, so that none of them can look like another line or field.
    """
    take_comm, comm = getter(layout, COMMON_COMM), layout.place(COMMON_COMM)
    times = ("duration", *layout.steps) if layout.form == "joined" else ()
    take_times = [(name, getter(layout, name)) for name in times]
    elsewhere = {*layout.hidden, "return", *times}
    args = [
        (arg, getter(layout, arg.name))
        for at, arg in enumerate(layout.args, VALUES)
        if at != comm and arg.name not in elsewhere
    ]
    take_return = getter(layout, "return") if layout.place("return") is not None else None
    returns = Arg("return", "int", pointer=layout.returns is not None and layout.returns.pointer)
    named = layout.returns is None or layout.returns.errno

    def show(record: Record, frames: Frames) -> str:
        caller = record[CALLER]
        place = layout.symbol if caller is None else f"{name_text(caller)} <- {layout.symbol}"
        parts = [f"({place})", *(f"{arg.name}={value_text(take(record), arg)}" for arg, take in args)]
        for name, take in take_times:
            time = take(record)
            parts.append(f"{name}={duration_text(time) if isinstance(time, int) else UNREADABLE}")
        if take_return is not None:
            returned = take_return(record)
            parts.append(f"return={value_text(returned, returns)}")
            if is_error(returned) and named:
                parts.append(f"error={name_of(-returned)}")
        program = take_comm(record)
        thread = f"{name_text(program if isinstance(program, bytes) else UNNAMED):>16}-{record[TID]:<7}"
        seconds, rest = divmod(record[TIME], 10**9)
        moment = f"{seconds:5}.{rest // 1000:06}"
        line = f"{thread} [{record[CPU]:03}] {FLAGS} {moment}: {event}: {' '.join(parts)}"
        return "\n".join([line, *(f" => {name_text(frame)}" for frame in frames)])

    return show


def value_text(value: Value, arg: Arg) -> str:
    """Return a value as the kernel prints one, but with quotes and what does not show escaped."""
    if value is None:
        return UNREADABLE
    if isinstance(value, int):
        return f"{value % (1 << 64):#x}" if arg.pointer and not is_error(value) else str(value)
    text = name_text(value)
    return (
        '"' + text.replace('"', "\\x22") + '"' if arg.kind in ("str", "vector", "comm", "program") else text
    )


def duration_text(nanoseconds: int) -> str:
    """Return a time in the unit that suits it, as filters take it: ``12.345us``."""
    size, unit = next((one for one in UNITS if nanoseconds >= one[0]), UNITS[-1])
    return f"{f'{nanoseconds / size:.3f}'.rstrip('0').rstrip('.')}{unit}"
