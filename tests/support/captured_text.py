"""Layouts and lines of captured text, what the parser reads in them, and text in pieces."""

from itertools import pairwise

from kprobe_exporter.grammar.event_format import parse_format, text_pattern
from kprobe_exporter.model.records import Batch, Layout, Record
from kprobe_exporter.model.values import Arg
from kprobe_exporter.source.lines import LineParser
from tests.unit.captured import Captured

COUNT = Arg("count", "int")
PATH = Arg("path", "str")
COMM = Arg("comm", "str")

ENTRY = Layout(0, "p", "p", "entry", "vfs_read", (COUNT, COMM))
RETURN = Layout(1, "r", "r", "return", "vfs_read", (Arg("return", "int"), COMM))
TWO = Layout(2, "two", "two", "entry", "rename", (COUNT, PATH, COMM))
THREE = Layout(3, "three", "three", "entry", "rename", (Arg("old", "str"), Arg("new", "str"), COMM))
MIXED = Layout(4, "mixed", "mixed", "entry", "f", (Arg("sym", "bare"), Arg("names", "texts"), COMM))
LATER = Layout(5, "later", "later", "entry", "f", (COMM, COUNT))
LAYOUTS = (ENTRY, RETURN, TWO, THREE, MIXED, LATER)


def line(
    body: bytes, comm: bytes = b"bash", tid: int = 1234, tgid: bytes = b"", flags: bytes = b"..... "
) -> bytes:
    """Print a line like trace_print_context() and trace_print_time() of kernel/trace/trace_output.c."""
    return b"%16s-%-7d %s[001] %s %5d.%06d: %s\n" % (comm, tid, tgid, flags[:-1], 12, 345678, body)


def parse(*pieces: bytes, layouts: tuple[Layout, ...] = LAYOUTS) -> Batch:
    """Return all results of the pieces as one batch, with the frames of an event joined across pieces."""
    parser, whole = LineParser(layouts), Batch()
    frames: dict[Record, tuple[bytes, ...]] = {}
    for piece in pieces:
        batch = parser.feed(piece)
        whole.records += batch.records
        whole.unparsed += batch.unparsed
        whole.lost += batch.lost
        whole.losses += batch.losses
        for record, some in batch.stacks:
            frames[record] = frames.get(record, ()) + some
    whole.stacks = list(frames.items())
    return whole


def cuts(data: bytes, places: list[int]) -> list[list[bytes]]:
    """Return the data in two divisions: cut at these places, and byte by byte."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [[data[start:end] for start, end in pairwise(at)] for at in (edges, range(len(data) + 1))]


def captured_layout(stream: Captured) -> Layout:
    """Return the layout of the captured event, from its definition or its tracepoint's format."""
    system, event = stream.how["event"].split("/")
    if stream.how["definition"] is None:
        form = parse_format(Captured(stream.kernel, f"format/{system}/{event}", {}).text)
        wanted = {"sys_exit_openat": ["ret"], "sched_process_exec": ["filename", "pid", "old_pid"]}[event]
        pattern, args = text_pattern(form, wanted)
        return Layout(0, "x", event, "tracepoint", event, args, None, pattern)
    verb, _, *fetched = stream.how["definition"].split()
    kinds = {"string": "str", "ustring": "str"}
    args = tuple(
        Arg(name, kinds.get(text.rsplit(":")[-1], "int"))  # type: ignore[arg-type]
        for name, text in (word.split("=") for word in fetched)
    )
    return Layout(0, "x", event, "return" if verb[0] == "r" else "entry", event, args)
