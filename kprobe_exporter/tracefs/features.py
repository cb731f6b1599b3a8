"""The features of this kernel, each found by looking or by a trial write, never by a version."""

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from kprobe_exporter.tracefs.definitions import delete
from kprobe_exporter.tracefs.files import TRACEABLE, Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import KernelFiles
from kprobe_exporter.tracefs.refusal import why

TRIAL = "kprobe_exporter_doctor"
"""The instance and group of the trials. It is locked and swept like an agent's instance, so the next trial
removes what a killed one left."""

FORBIDDEN = (errno.EPERM, errno.EACCES, errno.EROFS)


class Check(NamedTuple):
    """The result of one check. ``fix`` is set unless the state is ok.

    Without a ``required`` feature the agent cannot work at all; without another it is only limited.
    """

    name: str
    state: Literal["ok", "warn", "no", "unknown"]
    evidence: str
    fix: str | None = None
    required: bool = False


class EventKind(NamedTuple):
    """A kind of dynamic event, and a definition that every kernel with this kind accepts."""

    name: str
    file: str
    verb: str
    body: str


FUNCTION = "vfs_mknod"
"""A function of every kernel that is exported, and so never inlined, and that is hardly ever called."""

TRACEPOINT = "sched/sched_process_exec"
SYSCALL = "syscalls/sys_exit_openat"

FALLBACK = "until then let 'attach' name a tracepoint as well"
FTRACE_ENABLED = "proc/sys/kernel/ftrace_enabled"
FPROBE_SYNTAX = b"f[:[<group>/][<event>]]"

KINDS = (
    EventKind("kprobe", "kprobe_events", "p", FUNCTION),
    EventKind("kretprobe", "kprobe_events", "r16", f"{FUNCTION} return=$retval:s64"),
    # The kernel resolves the path at once, so it stands for the program of this process, wherever that is.
    EventKind("uprobe", "uprobe_events", "p", "/proc/self/exe:0x0"),
    # The README of tracefs is no evidence: that of 6.18 lists eprobes even with CONFIG_EPROBE_EVENTS off.
    EventKind("eprobe", "dynamic_events", "e", f"{TRACEPOINT.replace('/', '.')} comm=$comm:string"),
)

FILES = {
    "tracepoint": (f"events/{TRACEPOINT}/enable",),
    "syscalls": (f"events/{SYSCALL}/enable",),
    "hist": (f"events/{TRACEPOINT}/hist",),
    "notrace_pid": ("set_event_notrace_pid", "options/event-fork"),
    "thread_group": ("options/record-tgid",),
}
"""The features that are there if these files of an instance are."""

HIDES_URETPROBE: dict[tuple[int, ...], tuple[int, ...]] = {(6, 12): (6, 12, 14), (6, 13): (6, 13, 3)}
"""By series, the first release that hides the system call uretprobe from seccomp filters."""

FIXES = {
    "kprobe": f"Boot a kernel with CONFIG_KPROBE_EVENTS; {FALLBACK}.",
    "kretprobe": f"Boot a kernel with CONFIG_KPROBE_EVENTS and CONFIG_KRETPROBES; {FALLBACK}.",
    "uprobe": "Boot a kernel with CONFIG_UPROBE_EVENTS; until then no program or library can be probed.",
    "eprobe": "Boot a kernel with CONFIG_EPROBE_EVENTS; until then 'comm' is looked up when the event "
    "is read, and the kernel filters a tracepoint for one probe only.",
    "fprobe": "Boot a kernel with CONFIG_FPROBE_EVENTS (x86-64: Linux 6.5 or later); until then attach "
    "a kprobe where you would an fentry, and a kretprobe where you would an fexit.",
    "tracepoint": "Boot a kernel with CONFIG_EVENT_TRACING.",
    "syscalls": "Boot a kernel with CONFIG_FTRACE_SYSCALLS; until then probe the functions behind the calls.",
    "hist": "Boot a kernel with CONFIG_HIST_TRIGGERS; until then the agent reads and counts every firing.",
    "notrace_pid": "Boot Linux 5.7 or later; until then, with 'source: text', filter the agent's own process "
    "out of the events.",
    "thread_group": "Use the field 'tid'; 'pid' is unknown on this kernel.",
    "btf": "Boot a kernel with CONFIG_DEBUG_INFO_BTF, or say 'returns: int' where a function returns that.",
}
"""The remedy on a kernel without a feature."""


def kernel_checks(root: Path) -> list[Check]:
    """Check what is visible outside tracefs. ``root`` is ``/``, or a directory that a test uses instead."""
    btf = root / "sys/kernel/btf/vmlinux"
    return [
        _lockdown(root),
        _switch(
            root,
            "ftrace_enabled",
            FTRACE_ENABLED,
            "Turn it on with 'sysctl kernel.ftrace_enabled=1'; without it kprobes stay silent.",
            "Boot a kernel with CONFIG_FUNCTION_TRACER; kprobes and tracepoints do without.",
        ),
        _switch(
            root,
            "kprobes_enabled",
            "sys/kernel/debug/kprobes/enabled",
            "Turn them on with 'echo 1 > /sys/kernel/debug/kprobes/enabled'.",
            "If there are kprobes, 'mount -t debugfs nodev /sys/kernel/debug' shows whether they are on.",
        ),
        _presence("btf", {str(btf): btf.exists()}),
    ]


def uretprobe_hazard(release: str, machine: str) -> str | None:
    """Return a clause if return probes may get programs killed on this kernel, by uname(2); else None.

    Since 6.11 (ff474a78cef5) a function with a uretprobe returns through the system call uretprobe on x86-64.
    Seccomp filters that do not know it refuse it or kill the program. 6.14 (cf6cb56ef244) hides it from them,
    and so do 6.12.14 and 6.13.3. No file of the kernel shows this, so its version decides.
    """
    found = re.match(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", release, re.ASCII)
    if found is None or machine != "x86_64":
        return None
    version = tuple(int(number or 0) for number in found.groups())
    if not (6, 11) <= version < HIDES_URETPROBE.get(version[:2], (6, 14)):
        return None
    return (
        f"on Linux {found[0]} a seccomp filter may kill programs in which a function with a uretprobe returns"
    )


def uretprobe_check(release: str, machine: str) -> Check:
    """Check whether seccomp filters see the returns of functions in programs."""
    if (hazard := uretprobe_hazard(release, machine)) is None:
        return Check(
            "seccomp_uretprobe", "ok", "no seccomp filter sees the return of a function with a uretprobe"
        )
    fix = "Boot Linux 6.12.14, 6.13.3, 6.14 or later; until then attach no uretprobe and no ucall there."
    return Check("seccomp_uretprobe", "warn", hazard, fix)


def instance_checks(instance: Instance) -> list[Check]:
    """Check what this instance's tracefs can do. Defines and deletes events in its group, enables none."""
    return [
        *(try_kind(instance, kind) for kind in KINDS),
        _fprobe(instance),
        _functions(instance.files),
        *(
            _presence(name, {path: instance.files.exists(f"{instance.path}/{path}") for path in paths})
            for name, paths in FILES.items()
        ),
    ]


def try_kind(instance: Instance, kind: EventKind) -> Check:
    """Define an event of this kind and delete it again.

    The event is never enabled, so deleting it clears no buffer. If the deletion fails, or the process
    ends before it, closing or reclaiming the instance deletes the event.
    """
    files, event = instance.files, f"doctor_{kind.name}"
    if not files.exists(kind.file):
        return Check(kind.name, "no", f"there is no {kind.file}", FIXES[kind.name])
    line = f"{kind.verb}:{instance.group}/{event} {kind.body}"
    shown = f"'{kind.verb} {kind.body}'"
    try:
        files.write(kind.file, line)
    except OSError as error:
        fix = FIXES[kind.name] if error.errno not in FORBIDDEN else "Let uid 0 write to this file."
        reason = why(files, error, line, "error_log")
        return Check(kind.name, "no", f"{kind.file} refuses {shown}: {reason}", fix)
    delete(files, instance.group, event)
    return Check(kind.name, "ok", f"{kind.file} took {shown}")


def _fprobe(instance: Instance) -> Check:
    """Check for fprobes by tracefs' README, because a trial would patch the kernel's text.

    Unlike a kprobe, an fprobe is armed when it is defined. If it is defined and deleted while ftrace_enabled
    is 0, it leaves flags behind that make 6.12 switch ftrace off permanently (ftrace_shutdown, ftrace.c).
    """
    if _has_fprobes(instance.files):
        return Check("fprobe", "ok", "tracefs' README has fprobes")
    return Check("fprobe", "no", "tracefs' README has no fprobes", FIXES["fprobe"])


def _functions(files: Tracefs) -> Check:
    """Check whether the list of functions that can be probed is readable; a security module may forbid it."""
    try:
        count = files.read(TRACEABLE).count(b"\n")
    except OSError as error:
        until = "until then name functions one by one, without patterns"
        fix = f"Boot a kernel with CONFIG_DYNAMIC_FTRACE; {until}."
        if error.errno in FORBIDDEN:
            fix = f"Find out what denies uid 0 this file, such as a security module; {until}."
        return Check("functions", "no", f"{TRACEABLE} cannot be read: {error.strerror}", fix)
    return Check("functions", "ok", f"{TRACEABLE} lists {count} functions")


def no_fprobes(kernel: KernelFiles) -> str | None:
    """Return a clause that says why no fprobe event should be defined on this kernel; None if one can be.

    While ftrace is off, an fprobe would never fire, and could keep ftrace off permanently (see ``_fprobe``).
    """
    if not _has_fprobes(kernel.tracefs):
        return "this kernel has no fprobe events (CONFIG_FPROBE_EVENTS)"
    try:
        off = kernel.read(FTRACE_ENABLED).strip() == b"0"
    except OSError:
        off = False
    silent = "an fprobe stays silent while ftrace is off ('sysctl kernel.ftrace_enabled=1' turns it on)"
    return silent if off else None


def _has_fprobes(files: Tracefs) -> bool:
    return files.exists("README") and FPROBE_SYNTAX in files.read("README")


def _presence(name: str, exists: Mapping[str, bool]) -> Check:
    """Check whether all of these paths exist."""
    if missing := [path for path, there in exists.items() if not there]:
        return Check(name, "no", f"there is no {' and no '.join(missing)}", FIXES[name])
    return Check(name, "ok", f"there is {' and '.join(exists)}")


def _switch(root: Path, name: str, path: str, turn_on: str, make_visible: str) -> Check:
    """Check a file that holds 0 or 1: kprobes that are switched off are silent, without any error."""
    try:
        value = (root / path).read_text(errors="replace").strip()
    except OSError as error:
        return Check(name, "unknown", f"/{path} cannot be read: {error.strerror}", make_visible)
    if value == "0":
        return Check(name, "warn", f"/{path} is 0", turn_on)
    return Check(name, "ok", f"/{path} is {value}")


def _lockdown(root: Path) -> Check:
    """Check the mode in brackets: confidentiality forbids all tracing (security/lockdown/lockdown.c)."""
    path = "sys/kernel/security/lockdown"
    try:
        modes = (root / path).read_text(errors="replace").strip()
    except OSError as error:
        fix = "Mount securityfs with 'mount -t securityfs nodev /sys/kernel/security' to see the mode."
        return Check("lockdown", "unknown", f"/{path} cannot be read: {error.strerror}", fix)
    if "[confidentiality]" in modes:
        fix = "Boot with lockdown=integrity or less: confidentiality forbids all tracing."
        return Check("lockdown", "no", f"/{path} is '{modes}'", fix, required=True)
    return Check("lockdown", "ok", f"/{path} is '{modes}'", required=True)
