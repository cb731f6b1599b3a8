"""Finds the mounted tracefs, or mounts one if there is none and the process is permitted to."""

import errno
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.errors import NotMounted, TracefsError

log = logging.getLogger(__name__)

USUAL = Path("/sys/kernel/tracing")
"""The empty directory that the kernel makes for tracefs since 4.1 (fs/tracefs/inode.c)."""

MOUNTINFO = Path("/proc/self/mountinfo")

DEBUGFS = Path("/sys/kernel/debug/tracing")
"""The kernel mounts tracefs here by itself when a process accesses the path (kernel/trace/trace.c)."""

MOUNT_FLAGS = 0x2 | 0x4 | 0x8  # MS_NOSUID | MS_NODEV | MS_NOEXEC, as systemd mounts it


class Mount(NamedTuple):
    """A line of mountinfo that describes a tracefs mount."""

    path: Path
    root: str
    read_only: bool


def parse_mountinfo(text: str) -> list[Mount]:
    """Return the tracefs mounts in ``/proc/PID/mountinfo`` (proc_pid_mountinfo(5)), in its order."""
    mounts = []
    for line in text.split("\n"):  # splitlines() would also split at characters in a path
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(" "), tail.split(" ")
        if kind[0] == "tracefs" and len(fields) > 5:
            options = fields[5].split(",") + (kind[2].split(",") if len(kind) > 2 else [])
            mounts.append(Mount(Path(_unescape(fields[4])), _unescape(fields[3]), "ro" in options))
    return mounts


def _unescape(path: str) -> str:
    """Decode a path, in which mountinfo writes space, tab, newline and backslash in octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def find(mountinfo: str) -> Mount | None:
    """Return the mount of a whole tracefs to use: writable ones are preferred, then the usual places."""
    mounts = [mount for mount in parse_mountinfo(mountinfo) if mount.root == "/"]
    places = [USUAL, DEBUGFS]
    mounts.sort(key=lambda m: (m.read_only, places.index(m.path) if m.path in places else len(places)))
    return mounts[0] if mounts else None


@contextmanager
def mounted(asked: Path | None = None) -> Iterator[Path]:
    """Yield the root of a usable tracefs: ``asked``, a mounted one, or one that is mounted here.

    A tracefs mounted here is unmounted at the end, unless another process uses it by then. Raises
    NotMounted or TracefsError with a sentence that says how to fix it.
    """
    if asked is not None:
        _look(asked)
        yield asked
        return
    found = find(mountinfo())
    if found is None and (DEBUGFS / "instances").is_dir():
        found = find(mountinfo())
    if found is not None:
        if found.read_only:
            raise TracefsError(
                f"tracefs at {found.path} is mounted read-only: mount it read-write "
                f"(mount -o remount,rw {found.path}), or give a writable one with --tracefs."
            )
        _look(found.path)
        yield found.path
        return
    with _mounted_here(USUAL):
        yield USUAL


def mountinfo() -> str:
    """Return the mounts of this process. Raises NotMounted without /proc, as in a chroot."""
    try:
        return MOUNTINFO.read_text(errors="surrogateescape")
    except OSError as error:
        raise NotMounted(
            f"{MOUNTINFO} cannot be read ({error.strerror}): mount /proc with 'mount -t proc proc /proc'."
        ) from None


def _look(root: Path) -> None:
    """Raise NotMounted or TracefsError unless ``root`` is a tracefs that this process may use."""
    try:
        names = set(os.listdir(root))
    except PermissionError:
        raise TracefsError(
            f"no permission to read tracefs at {root}: run as root (uid 0; no capability is needed)."
        ) from None
    except OSError as error:
        raise NotMounted(
            f"there is no tracefs at {root} ({error.strerror}): "
            f"mount it with 'mount -t tracefs nodev {USUAL}'."
        ) from None
    if not {"events", "instances", "trace_clock"} <= names:
        raise NotMounted(
            f"{root} is not a tracefs (no 'events', 'instances' or 'trace_clock' in it): "
            f"mount one with 'mount -t tracefs nodev {USUAL}', or correct --tracefs."
        )
    if os.statvfs(root).f_flag & os.ST_RDONLY:
        raise TracefsError(f"tracefs at {root} is mounted read-only: mount it read-write.")
    try:
        (root / "trace_clock").read_bytes()
    except PermissionError as error:
        # LOCKDOWN_TRACEFS refuses every open with EPERM (fs/tracefs/inode.c, kernel/trace/trace.c).
        why = (
            "the kernel is locked down (confidentiality), which forbids all tracing: boot it with "
            "lockdown=integrity or less"
            if error.errno == errno.EPERM
            else "no permission to open its files: run as root (uid 0; no capability is needed)"
        )
        raise TracefsError(f"tracefs at {root} cannot be used: {why}.") from None


@contextmanager
def _mounted_here(path: Path) -> Iterator[None]:
    import ctypes  # noqa: PLC0415 - not needed on most hosts, where tracefs is mounted

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"nodev", os.fsencode(path), b"tracefs", MOUNT_FLAGS, None) != 0:
        code = ctypes.get_errno()
        why = os.strerror(code)
        if code in (errno.EPERM, errno.EACCES):
            why = "it takes root with CAP_SYS_ADMIN to mount one here"
        elif code in (errno.ENODEV, errno.ENOENT):
            why = "this kernel was built without tracefs (CONFIG_TRACING)"
        raise NotMounted(
            f"tracefs is not mounted and mounting it at {path} failed: {why}. Mount it as root with "
            f"'mount -t tracefs nodev {path}', or in a container bind-mount the host's {path}."
        )
    log.info("mounted tracefs at %s", path)
    try:
        yield
    finally:
        if libc.umount2(os.fsencode(path), 0) != 0:
            log.info("left tracefs mounted at %s: %s", path, os.strerror(ctypes.get_errno()))
