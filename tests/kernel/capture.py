"""Captures what this kernel really writes, as fixtures: `python -m tests.kernel.capture DIRECTORY`.

It works in its own tracefs instance and event group, and removes both at the end. scripts/capture-fixtures
runs it on every kernel under test and on the machine's own. meta.json names what a kernel cannot do;
tests/fixtures/README.md describes the files.
"""

import argparse
import errno
import json
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kernel.workload import TRUE, WORKS, Work, children, few_opens, flood
from tests.support.pipes import drained
from tests.vm.kernels import KERNELS

TRACEFS = Path("/sys/kernel/tracing")
GROUP = "capture"
LIMIT = 40_000  # bytes of one fixture


def _entry(program: Path) -> int:
    """Return the file offset of the program's entry point; the file is 64-bit ELF."""
    header = program.read_bytes()[:8192]
    entry, table = struct.unpack_from("<QQ", header, 24)
    size, count = struct.unpack_from("<HH", header, 54)
    for at in range(table, table + size * count, size):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", header, at)
        if kind == 1 and address <= entry < address + length:
            return int(entry - address + offset)
    raise ValueError(f"{program}: no segment holds the entry point")


@dataclass(frozen=True)
class Probe:
    """An event to capture: one that ``definition`` creates, or an existing tracepoint."""

    event: str
    definition: str | None = None


KPROBE = Probe(
    f"{GROUP}/cap_open",
    f"p:{GROUP}/cap_open do_sys_openat2 dfd=$arg1:s32 path=+0($arg2):ustring comm=$comm:string",
)
KRETPROBE = Probe(
    f"{GROUP}/cap_open_ret",
    f"r:{GROUP}/cap_open_ret do_sys_openat2 ret=$retval:s64 comm=$comm:string",
)
EPROBE = Probe(
    f"{GROUP}/cap_exit_openat",
    f"e:{GROUP}/cap_exit_openat syscalls.sys_exit_openat ret=$ret:s64 comm=$comm:string",
)
EXEC = Probe("sched/sched_process_exec")
SYSCALL = Probe("syscalls/sys_exit_openat")
UPROBE = Probe(
    f"{GROUP}/cap_true",
    f"p:{GROUP}/cap_true {TRUE}:{_entry(TRUE):#x} comm=$comm:string stack=$stack0:u64",
)

STREAMS = {
    "kprobe": KPROBE,
    "kretprobe": KRETPROBE,
    "eprobe": EPROBE,
    "tracepoint": EXEC,
    "syscall": SYSCALL,
    "uprobe": UPROBE,
}
FORMATS = (
    *(KPROBE.event, KRETPROBE.event, EPROBE.event, EXEC.event),
    *("sched/sched_switch", "syscalls/sys_enter_openat", "syscalls/sys_exit_openat"),
)
MISTAKES = {
    "unknown_symbol": f"p:{GROUP}/bad no_such_function_anywhere",
    "bad_argument": f"p:{GROUP}/bad do_sys_openat2 x=$nonsense",
    "bad_type": f"r:{GROUP}/bad do_sys_openat2 ret=$retval:s99",
    "bad_offset": f"r:{GROUP}/bad do_sys_openat2+4",
    "bad_name": f"p:{GROUP}/bad-name do_sys_openat2",
    "bad_uprobe_argument": f"p:{GROUP}/bad {TRUE}:{_entry(TRUE):#x} x=$nonsense",
    "unknown_event": f"e:{GROUP}/bad syscalls.no_such_event",
    "unknown_field": f"e:{GROUP}/bad syscalls.sys_exit_openat x=$nonsense",
}


class Capture:
    """Writes fixtures into one directory and remembers how each was made."""

    def __init__(self, directory: Path, instance: Path) -> None:
        self.directory = directory
        self.instance = instance
        self.made: dict[str, dict[str, object]] = {}
        self.absent: dict[str, str] = {}

    def save(self, name: str, data: bytes, **how: object) -> None:
        if len(data) > LIMIT:
            raise SystemExit(f"{name} has {len(data)} bytes, more than a fixture may have")
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.made[name] = how

    def stream(self, name: str, probe: Probe, works: list[Work], *options: str) -> None:
        """Save what trace_pipe prints of `probe` while one child after another does its work.

        The pipe is read after each child: a line begins with the name that its thread has at the read.
        """
        chunks = []
        # The pipe and set_event_pid are ready before the event is enabled: only the children are recorded.
        with children(works) as ready, _opened(self.instance / "trace_pipe") as pipe:
            for child in ready:
                _write(self.instance / "set_event_pid", str(child.pid))
            with self._switched(probe, options):
                for child in ready:
                    child.work()
                    chunks.append(drained(pipe))
                stats = (self.instance / "per_cpu/cpu0/stats").read_bytes()
                profiles = [TRACEFS / "kprobe_profile", TRACEFS / "uprobe_profile"]
                profile = {path.name: path.read_bytes() for path in profiles if path.exists()}
                shown = Path(probe.event).name.encode()
        _empty(self.instance / "set_event_pid")
        how = {"event": probe.event, "definition": probe.definition, "options": list(options)}
        self.save(f"trace_pipe/{name}.txt", _head(b"".join(chunks)), **how)
        self.save(f"stats/{name}.txt", stats, **how)
        for file, text in profile.items():
            if shown in text:
                self.save(f"{file}/{name}.txt", text, **how)

    def copy(self, source: Path, name: str) -> None:
        try:
            self.save(name, source.read_bytes(), file=str(source.relative_to(TRACEFS)))
        except OSError as error:
            self.absent[name] = error.strerror or str(error)

    @contextmanager
    def _switched(self, probe: Probe, options: tuple[str, ...]) -> Iterator[None]:
        for option in options:
            _write(self.instance / "options" / option, "1")
        _write(self.instance / "events" / probe.event / "enable", "1")
        try:
            yield
        finally:
            _write(self.instance / "events" / probe.event / "enable", "0")
            for option in options:
                _write(self.instance / "options" / option, "0")


def capture(directory: Path, command: str) -> None:
    with _instance() as instance:
        taken = Capture(directory, instance)
        with _installed(taken.absent) as installed:
            for name, probe in STREAMS.items():
                if probe not in installed or not (instance / "events" / probe.event).exists():
                    taken.absent.setdefault(name, "no such event")
                    continue
                taken.stream(name, probe, WORKS)
                taken.stream(f"{name}.record-tgid", probe, WORKS, "record-tgid")
            source = KRETPROBE if KRETPROBE in installed else SYSCALL
            taken.stream("stacktrace", source, [few_opens], "stacktrace")
            _write(instance / "buffer_size_kb", "4")
            taken.stream("lost", source, [few_opens, flood, few_opens])
            for event in FORMATS:
                taken.copy(TRACEFS / "events" / event / "format", f"format/{event}")
        for name, mistake in MISTAKES.items():
            _mistake(taken, name, mistake)
    taken.copy(TRACEFS / "README", "tracefs_README")
    taken.copy(TRACEFS / "events/header_page", "header_page")
    taken.copy(TRACEFS / "events/header_event", "header_event")
    meta = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "command": command,
        "files": taken.made,
        "absent": taken.absent,
    }
    (directory / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


@contextmanager
def _instance() -> Iterator[Path]:
    instance = TRACEFS / "instances" / f"{GROUP}_{os.getpid()}"
    instance.mkdir()
    try:
        # The clock is set first, because writing it empties the buffer.
        _write(instance / "trace_clock", "mono")
        _write(instance / "options/event-fork", "1")
        yield instance
    finally:
        instance.rmdir()


@contextmanager
def _installed(absent: dict[str, str]) -> Iterator[list[Probe]]:
    """Yield the probes that this kernel accepts; delete them at the end, when the instance is drained."""
    installed = []
    try:
        for name, probe in STREAMS.items():
            try:
                if probe.definition:
                    _define(probe.definition)
            except OSError as error:
                absent[name] = f"{probe.definition}: {error.strerror}"
            else:
                installed.append(probe)
        yield installed
    finally:
        for probe in installed:
            if probe.definition:
                _define(f"-:{probe.event}")


def _mistake(taken: Capture, name: str, definition: str) -> None:
    """Save the entry that a refused definition leaves in error_log, which is its last entry."""
    try:
        _define(definition)
    except OSError as error:
        entries = (TRACEFS / "error_log").read_bytes().split(b"\n[")
        if definition.encode().split(b" ", 1)[1] in entries[-1]:
            entry = b"[" + entries[-1].removeprefix(b"[")
            reason = errno.errorcode[error.errno or 0]
            taken.save(f"error_log/{name}.txt", entry, definition=definition, errno=reason)
        else:
            taken.absent[f"error_log/{name}.txt"] = f"no entry, {error.strerror}"
    else:
        _define(f"-:{GROUP}/bad")
        taken.absent[f"error_log/{name}.txt"] = f"accepted: {definition}"


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _head(text: bytes) -> bytes:
    """Return as many whole lines as fit into LIMIT bytes."""
    return text if len(text) <= LIMIT else text[: text.rindex(b"\n", 0, LIMIT) + 1]


def _define(line: str) -> None:
    """Write one command, without O_TRUNC, which would delete the probes of all processes."""
    descriptor = os.open(TRACEFS / "dynamic_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _write(path: Path, value: str) -> None:
    """Write a control file, without O_TRUNC: an empty set_event_pid would record every process."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _empty(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("directory", type=Path)
    series = os.environ.get("KPROBE_EXPORTER_VM")
    if series in KERNELS:
        how = f"python -m tests.vm exec --kernel {series} -- python -m tests.kernel.capture"
    else:
        how = "python -m tests.kernel.capture, on a machine that ran this kernel"
    capture(arguments.parse_args().directory, how)
