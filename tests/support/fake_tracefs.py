"""A tracefs in memory that answers as a kernel does; the contract tests compare it with the real one.

It has what the tracefs layer uses: instances with their lock, definitions with the kernel's errnos,
enabling, filters, hist triggers, profiles, statistics, a trace_pipe with the kernel's text, and the pages
of the first CPU's trace_pipe_raw.

It counts how often a kernel would have waited for its readers (synchronize_rcu() and the like), of which a
removal's time consists. Measured on 5.10 to 7.2: docs/operating.md.
"""

import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.definition import Definition, parse_definition
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.place import FileOffset
from kprobe_exporter.tracefs.ownership import MARKER
from tests.support import fake_pages

EXEC_FORMAT = """name: sched_process_exec
ID: 311
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:__data_loc char[] filename;\toffset:8;\tsize:4;\tsigned:0;
\tfield:pid_t pid;\toffset:12;\tsize:4;\tsigned:1;
\tfield:pid_t old_pid;\toffset:16;\tsize:4;\tsigned:1;

print fmt: "filename=%s pid=%d old_pid=%d", __get_str(filename), REC->pid, REC->old_pid
"""
EXIT_OPENAT_FORMAT = """name: sys_exit_openat
ID: 700
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;
\tfield:long ret;\toffset:16;\tsize:8;\tsigned:1;

print fmt: "0x%lx", REC->ret
"""

PIPE_BYTES = 1 << 20
"""The capacity of a pipe: of pages, 256. Each firing makes a page."""

TOP = ("events", "instances", "trace_clock", "README")
DEFINITION_FILES = ("kprobe_events", "uprobe_events", "dynamic_events")


@dataclass
class FakeEvent:
    """A dynamic event: its definition, its counts, and the instances in which it is enabled."""

    group: str
    name: str
    number: int
    line: str
    definition: Definition
    symbol: str
    is_return: bool
    kprobe: bool
    hits: int = 0
    enabled: set[str] = field(default_factory=set)


@dataclass
class FakeInstance:
    """One instance: what is unread of its ring buffer, as text and as records, and what was written to it."""

    unread: bytes = b""
    records: list[tuple[int, bytes]] = field(default_factory=list)  # each with its time
    entries: int = 0
    open_pipes: dict[int, int] = field(default_factory=dict)  # read end → write end
    raw_pipes: dict[int, int] = field(default_factory=dict)  # the same of trace_pipe_raw
    values: dict[str, str] = field(default_factory=dict)
    triggers: dict[str, dict[str, int]] = field(default_factory=dict)  # event → hist trigger → hits
    notrace: set[int] = field(default_factory=set)
    soft: dict[str, set[str]] = field(default_factory=dict)  # event → its other triggers


class FakeTracefs:
    """The fake. ``root`` holds real, empty directories, so that the kernel provides the locks.

    Without ``pages`` it has no events/header_page, so that its events can only be read as text.
    """

    def __init__(
        self,
        root: Path,
        functions: set[str],
        *,
        kprobes: bool = True,
        eprobes: bool = True,
        pages: bool = False,
    ) -> None:
        self.root = root
        self.functions = functions
        self.kprobes = kprobes
        self.eprobes = eprobes
        self.fprobes_take_maxactive = True
        self.joins_places = True  # of several uprobes to one event, as Linux 5.4 does
        self.shows_filters = False  # of all events in one file, as Linux 7.0 does
        self.pages = pages
        self.tracepoints = {
            ("sched", "sched_process_exec"): EXEC_FORMAT,
            ("syscalls", "sys_exit_openat"): EXIT_OPENAT_FORMAT,
        }
        self.events: list[FakeEvent] = []
        self.instances: dict[str, FakeInstance] = {}
        self._last_number = 1000
        self.error_log = ""
        self.writes: list[tuple[str, str]] = []
        self.waits = 0  # of the kernel for its readers, at removals
        (root / "instances").mkdir()

    # The interface that the tracefs layer uses.

    def exists(self, path: str) -> bool:
        if path in DEFINITION_FILES:
            return self.kprobes or path != "kprobe_events"
        try:
            self.read(path)
        except IsADirectoryError:
            return True
        except OSError:
            return False
        return True

    def names(self, path: str) -> list[str]:
        if path == "instances":
            return sorted(self.instances)
        instance, rest = self._instance(path)
        if rest == "per_cpu" and instance is not None:
            return ["cpu0", "cpu1"]
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def mkdir(self, path: str) -> None:
        (self.root / path).mkdir()
        self.instances[path.removeprefix("instances/")] = FakeInstance()

    def rmdir(self, path: str) -> None:
        name = path.removeprefix("instances/")
        if name not in self.instances:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self._is_read(self.instances[name]):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        (self.root / path).rmdir()
        on = self._on(name)
        self.waits += len(on) + sum(map(self._triggers(self.instances[name]), on)) + 1
        del self.instances[name]
        for event in self.events:
            event.enabled.discard(name)

    def lock(self, path: str) -> int | None:
        fd = os.open(self.root / path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def open_pipe(self, path: str) -> int:
        instance, rest = self._instance(path)
        if instance is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        raw = rest.endswith("/trace_pipe_raw")
        if not raw and self._is_read(instance):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(write, True)  # a test that fires much waits for the reader, so that nothing is lost
        pipes = instance.raw_pipes if raw else instance.open_pipes
        pipes[read] = write
        self._flush(instance)
        return read

    def open_marker(self, path: str) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)  # it keeps no time

    def read(self, path: str) -> bytes:
        instance, rest = self._instance(path)
        if path in DEFINITION_FILES and self.exists(path):
            return self._definitions(path).encode()
        if path == "kprobe_profile" and self.kprobes:
            lines = (f"  {e.name:<44} {e.hits:15} {0:15}\n" for e in self.events if e.kprobe)
            return "".join(lines).encode()
        if path == "uprobe_profile":
            return "".join(map(_uprobe_line, self.events)).encode()
        if path == "error_log":
            return self.error_log.encode()
        if path in TOP:
            return b""
        if instance is not None:
            return self._read_instance(instance, path, rest).encode()
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def truncate(self, path: str) -> None:
        self.writes.append((path, ""))
        instance, rest = self._instance(path)
        if instance is None or not self.exists(path):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if rest.endswith("_pid"):
            instance.values[rest] = ""
            return
        with self._switching(path.split("/")[1]):
            self.waits += len(instance.triggers.pop(rest.removesuffix("/trigger"), {}))

    def write(self, path: str, text: str) -> None:
        self.writes.append((path, text))
        if path in DEFINITION_FILES and self.exists(path):
            self._define(path, text.rstrip("\n"))
            return
        instance, rest = self._instance(path)
        if instance is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        with self._switching(path.split("/")[1]):
            self._write_instance(instance, path, rest, text.rstrip("\n"))

    # The actions of a test.

    @property
    def probes(self) -> list[FakeEvent]:
        """The events without the markers, which show whose a group is."""
        return [event for event in self.events if event.name != MARKER]

    def fire(self, symbol: str, body: str = "", tid: int | None = None) -> None:
        """Call a function that returns, or fire a tracepoint, in this thread or in the thread ``tid``."""
        tid = threading.get_native_id() if tid is None else tid
        for event in [e for e in self.events if e.symbol == symbol and (e.enabled or self._soft(e))]:
            event.hits += 1
            address = f"caller+0x1/0x2 <- {symbol}" if event.is_return else f"{symbol}+0x0/0x10"
            record = fake_pages.record(event.number, event.definition, tid, body)
            for name in event.enabled:
                self._record(self.instances[name], tid, f"{event.name}: ({address}){body}", record)
        for instance in self.instances.values():
            for event in [e for e in self.events if e.symbol == symbol]:
                hist = instance.triggers.get(f"events/{event.group}/{event.name}", {})
                for trigger in hist:
                    hist[trigger] += 1

    def _soft(self, event: FakeEvent) -> bool:
        """Whether a trigger keeps the event counting in some instance."""
        key = f"events/{event.group}/{event.name}"
        return any(self._triggers(one)(key) for one in self.instances.values())

    @staticmethod
    def _triggers(instance: FakeInstance) -> Callable[[str], int]:
        """The number of triggers of an event, hist triggers and others."""
        return lambda key: len(instance.soft.get(key, ())) + len(instance.triggers.get(key, ()))

    def _on(self, name: str) -> list[str]:
        """The events that are enabled in an instance, or that a trigger enables softly there."""
        instance = self.instances[name]
        keys = [f"events/{each.group}/{each.name}" for each in self.events]
        on = {key for key, each in zip(keys, self.events, strict=True) if name in each.enabled}
        static = [f"events/{system}/{event}" for system, event in self.tracepoints]
        on |= {key for key in static if instance.values.get(f"{key}/enable") == "1"}
        return [key for key in [*keys, *static] if key in on or self._triggers(instance)(key)]

    @contextmanager
    def _switching(self, name: str) -> Iterator[None]:
        """Count a wait for each event that is switched off in an instance meanwhile."""
        before = len(self._on(name))
        yield
        self.waits += max(0, before - len(self._on(name)))

    def feed(self, instance: str, text: bytes) -> None:
        """Make captured text appear in an instance's trace_pipe."""
        self.instances[instance].unread += text
        self._flush(self.instances[instance])

    # The kernel's side.

    def _instance(self, path: str) -> tuple[FakeInstance | None, str]:
        found = re.fullmatch(r"instances/([^/]+)(?:/(.*))?", path)
        if found is None:
            return None, path
        return self.instances.get(found[1]), found[2] or ""

    def _record(self, instance: FakeInstance, tid: int, body: str, record: bytes) -> None:
        if tid in instance.notrace or instance.values.get("tracing_on") == "0":
            return
        instance.entries += 1
        instance.records.append((time.monotonic_ns(), record))
        instance.unread += f"{'test':>16}-{tid:<7} [000] d..1. {1:5}.{instance.entries:06}: {body}\n".encode()
        self._flush(instance)

    def _flush(self, instance: FakeInstance) -> None:
        for write in self._live_pipes(instance.open_pipes):
            os.write(write, instance.unread)
            instance.unread, instance.records = b"", []
        for write in self._live_pipes(instance.raw_pipes)[:1]:  # the first CPU's
            for page in fake_pages.pages(instance.records):
                os.write(write, page)
            instance.unread, instance.records = b"", []

    def _is_read(self, instance: FakeInstance) -> bool:
        return bool(self._live_pipes(instance.open_pipes) or self._live_pipes(instance.raw_pipes))

    @staticmethod
    def _live_pipes(pipes: dict[int, int]) -> list[int]:
        """The write ends of pipes that are still read. A reader stops by closing its read end."""
        for read, write in list(pipes.items()):
            try:  # the number may be reused for another file; both ends of a pipe share one inode
                live = os.fstat(read).st_ino == os.fstat(write).st_ino
            except OSError:
                live = False
            if not live:
                os.close(write)
                del pipes[read]
        return list(pipes.values())

    def _definitions(self, path: str) -> str:
        shown = [e for e in self.events if path == "dynamic_events" or e.kprobe]
        if path == "uprobe_events":
            shown = [e for e in self.events if isinstance(e.definition.place, FileOffset)]
        return "".join(f"{e.line}\n" for e in shown)

    def _define(self, path: str, line: str) -> None:
        if line.startswith("-:"):
            self._delete(line.removeprefix("-:"))
            return
        try:
            definition = parse_definition(line)
        except GrammarError as error:
            raise self._refuse(errno.EINVAL, "Invalid definition", line, error.column) from None
        kprobe = line[0] in "pr" and path != "uprobe_events"
        body = line.split(" ", 2)[1]
        symbol = body.partition(".")[2] if line[0] == "e" else body.partition("+")[0].rpartition(":")[2]
        if line[0] == "e" and not (self.eprobes and path == "dynamic_events"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        if definition.maxactive and line[0] == "f" and not self.fprobes_take_maxactive:
            raise self._refuse(errno.EINVAL, "Invalid maxactive number", line, 1)
        symbol = symbol.removesuffix("%return")
        known = self.functions if kprobe or line[0] == "f" else {event for _, event in self.tracepoints}
        if isinstance(definition.place, FileOffset):
            symbol = code_at(definition.place.path, definition.place.offset)
            known = {symbol}
        if symbol not in known:
            place = line.index(body)
            raise self._refuse(errno.ENOENT, "Invalid probed address or symbol", line, place)
        group, name = definition.group or "kprobes", definition.event or f"p_{symbol}_0"
        same = [e for e in self.events if (e.group, e.name) == (group, name)]
        if same and not (path == "uprobe_events" and all(e.symbol != symbol for e in same)):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if not self.joins_places:
            self.events = [e for e in self.events if e not in same]
        self._last_number += 1
        number = self._last_number
        self.events.append(FakeEvent(group, name, number, line, definition, symbol, line[0] == "r", kprobe))

    def _refuse(self, code: int, text: str, line: str, column: int) -> OSError:
        caret = " " * (len("  Command: ") + column) + "^"
        self.error_log += f"[  100.000001] trace_kprobe: error: {text}\n  Command: {line}\n{caret}\n"
        return OSError(code, os.strerror(code))

    def _delete(self, name: str) -> None:
        found = [event for event in self.events if f"{event.group}/{event.name}" == name]
        if any(event.enabled or self._soft(event) for event in found):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if not found:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.waits += sum(event.kprobe for event in found)
        self.events = [event for event in self.events if event not in found]

    def _event(self, rest: str) -> FakeEvent | None:
        parts = rest.split("/")
        return next((e for e in self.events if parts[:3] == ["events", e.group, e.name]), None)

    def _read_instance(self, instance: FakeInstance, path: str, rest: str) -> str:
        parts = rest.split("/")
        if self.pages and parts[0] == "events" and parts[-1] in fake_pages.HEADERS:
            return fake_pages.HEADERS[parts[-1]]
        if parts[0] == "events" and len(parts) == 4:
            return self._read_event(instance, path, rest, parts)
        if re.fullmatch(r"per_cpu/cpu[01]/stats", rest):
            entries = instance.entries if "cpu0" in rest else 0
            return f"entries: {entries}\noverrun: 0\ncommit overrun: 0\nbytes: 8\ndropped events: 0\n"
        if rest == "set_event":
            on = [key.removeprefix("events/").replace("/", ":") for key in self._on(path.split("/")[1])]
            return "".join(f"{event}\n" for event in on)
        if rest == "show_event_filters" and self.shows_filters:
            pattern = re.compile("events/(.+)/(.+)/filter")
            named = [(pattern.fullmatch(key), value) for key, value in instance.values.items()]
            filters = {f"{key[1]}:{key[2]}": text for key, text in named if key and text != "0"}
            return "".join(f"{event:<31} {text}\n" for event, text in filters.items())
        if rest in {"set_event_notrace_pid", "error_log", ""} or rest in instance.values:
            return instance.values.get(rest, "")
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _read_event(self, instance: FakeInstance, path: str, rest: str, parts: list[str]) -> str:
        event, static = self._event(rest), self.tracepoints.get((parts[1], parts[2]))
        if parts[3] == "format" and static:
            return static
        if parts[3] == "format" and event:
            return fake_pages.event_format(event.name, event.number, event.definition)
        if event and parts[3] == "enable":
            soft = self._triggers(instance)(rest.rpartition("/")[0]) > 0
            return f"{int(path.split('/')[1] in event.enabled)}{'*' * soft}\n"
        if (event or static) and parts[3] == "filter":
            text = instance.values.get(rest, "0")
            return f"{'none' if text == '0' else text}\n"
        if (event or static) and parts[3] in {"enable", "trigger"}:
            return instance.values.get(rest, "0\n")
        if event and parts[3] == "hist":
            tables = instance.triggers.get(rest.removesuffix("/hist"), {})
            return "\n\n".join(hist_table(*table) for table in tables.items())
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _write_instance(self, instance: FakeInstance, path: str, rest: str, text: str) -> None:
        name = path.split("/")[1]
        key, _, last = rest.rpartition("/")
        event = self._event(rest)
        if rest == "events/enable" and text == "0":
            for each in self.events:
                each.enabled.discard(name)
        elif rest == "set_event_notrace_pid":
            instance.notrace |= set(map(int, text.split()))
        elif rest == "trace_marker":
            tid = threading.get_native_id()
            self._record(instance, tid, f"tracing_mark_write: {text}", fake_pages.marker(tid, text))
        elif event is not None and last == "enable":
            (event.enabled.add if text == "1" else event.enabled.discard)(name)
        elif event is not None and last == "filter":
            if text != "0":
                self._filter(event, text)
            elif instance.values.get(rest, "0") != "0":
                self.waits += 1
            instance.values[rest] = text
        elif event is not None and last == "trigger":
            self._trigger(instance, key, text)
        elif key.startswith("events/") and not self._static(key):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        else:
            instance.values[rest] = text

    def _static(self, key: str) -> bool:
        return tuple(key.split("/")[1:]) in self.tracepoints

    @staticmethod
    def _filter(event: FakeEvent, text: str) -> None:
        fields = set(re.findall(r"(\w+)=", event.line)) | {"common_pid", "comm"}
        try:
            unknown = parse_filter(text).fields - fields
        except GrammarError:
            unknown = frozenset({text})
        if unknown:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def _trigger(self, instance: FakeInstance, key: str, text: str) -> None:
        word = text.removeprefix("!").partition(":")[0].partition(" ")[0]
        if text.startswith("!"):  # to free the trigger, and, but for enable_event, what was parsed
            there = word in instance.soft.get(key, ()) or text[1:] in instance.triggers.get(key, ())
            self.waits += there + (word != "enable_event")
        if word != "hist":
            others = instance.soft.setdefault(key, set())
            (others.discard if text.startswith("!") else others.add)(word)
        elif text.startswith("!"):
            instance.triggers.get(key, {}).pop(text.removeprefix("!"), None)
        elif text in instance.triggers.setdefault(key, {}):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        else:
            instance.triggers[key][text] = 0


def code_at(path: str | Path, offset: int) -> str:
    """Return the "symbol" of a place in a file: a uprobe belongs to the inode, not to the path."""
    found = Path(path).stat()
    return f"{found.st_dev}:{found.st_ino}:{offset:#x}"


def _uprobe_line(event: FakeEvent) -> str:
    place = event.definition.place
    return f"  {place.path} {event.name:<44} {event.hits:15}\n" if isinstance(place, FileOffset) else ""


def hist_table(trigger: str, hits: int) -> str:
    """Return the table of a trigger with one key, a number, that was 0 at every hit."""
    words, _, condition = trigger.partition(" if ")
    attributes = dict(pair.split("=") for pair in words.removeprefix("hist:").split(":"))
    keys, size = attributes["keys"], attributes.get("size", "2048")
    condition = f" if {condition}" if condition else ""
    row = f"{{ {keys}: {0:10} }} hitcount: {hits:10}\n" if hits else ""
    return (
        "# event histogram\n#\n# trigger info: "
        f"hist:keys={keys}:vals=hitcount:sort=hitcount:size={size}{condition} [active]\n#\n\n{row}"
        f"\nTotals:\n    Hits: {hits}\n    Entries: {int(hits > 0)}\n    Dropped: 0\n"
    )
