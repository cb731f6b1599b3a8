"""Turns the errno of a refused probe into a sentence, with the kernel's message from error_log."""

import errno
import re
from collections.abc import Mapping

from kprobe_exporter.errors import ProbeRefused, sentence
from kprobe_exporter.tracefs.files import Tracefs

ENTRY = re.compile(r"^\[\s*\d+\.\d+\] (?P<place>.+?): error: (?P<text>.*)$")

MEANING = {
    errno.ENOENT: "this kernel has no such function or event",
    errno.EINVAL: "the kernel does not know a name in it, or does not allow a probe there",
    errno.EILSEQ: "the offset is not the start of an instruction",
    errno.EEXIST: "the name is taken",
    errno.EADDRNOTAVAIL: "the name stands for more than one function",
    errno.EBUSY: "another user of tracefs uses it",
    errno.EPERM: "the kernel is locked down (confidentiality), or a security module forbids it",
    errno.EACCES: "no permission: run as root",
    errno.EROFS: "tracefs is mounted read-only",
    errno.ENOMEM: "no memory",
    errno.ENODEV: "ftrace has switched itself off after a fault of the kernel, which dmesg tells of",
    errno.E2BIG: "the definition is too long",
    errno.ENOSPC: "the definition does not fit",
    errno.EOPNOTSUPP: "this kernel was built without it",
}

ENOTSUPP = 524  # An errno that only the kernel defines (include/linux/errno.h)

UNFIT = "the instruction at this offset is one that the kernel cannot step over"

IN_FILE = MEANING | {
    errno.ENOENT: "there is no such file where this process looks (its mount namespace)",
    errno.EINVAL: "this is not a regular file, or the offset is behind its end, or an argument is unknown",
    errno.EIO: "the file system does not allow probes in its files",
    errno.ENOEXEC: UNFIT,
    ENOTSUPP: UNFIT,
}
"""The meanings for a uprobe (kernel/events/uprobes.c). The kernel reports some only when it is enabled."""

REPLACED = "was replaced at this moment: the new file is tried next"
"""The refusal of a program's path that has come to name another file since planning."""

NON_UNIQUE = "The symbol is not unique"
"""NON_UNIQ_SYMBOL of kernel/trace/trace_probe.h; the errno is EADDRNOTAVAIL before 6.12, then EINVAL."""


class NotUnique(ProbeRefused):
    """Several functions have the name: ``Resolver.explain`` says how to name each of them alone."""


class NotBuilt(ProbeRefused):
    """The kernel was built without probes of this kind, and so refuses every function."""


def refused(error: OSError, reason: str) -> ProbeRefused:
    """Return the exception for a refused definition; ``reason`` is the clause from ``why``."""
    several = error.errno == errno.EADDRNOTAVAIL or NON_UNIQUE in reason
    return (NotUnique if several else ProbeRefused)(sentence(reason))


def logged_error(log: str, command: str) -> str | None:
    """Return the last error in ``error_log`` for this command: its text, and the command with ^ in place.

    The file keeps the last 8 errors of all programs (kernel/trace/trace.c, tracing_log_err), so an
    entry counts only if its command is ours.
    """
    found, text = None, ""
    lines = log.split("\n")
    for number, line in enumerate(lines):
        if entry := ENTRY.match(line):
            text = entry["text"]
        elif line == f"  Command: {command}" and text:
            caret = lines[number + 1].find("^") if number + 1 < len(lines) else -1
            at = max(0, min(caret - len("  Command: "), len(command)))
            found = f"{text}, at ^ in '{command[:at]}^{command[at:]}'"
            text = ""
    return found


REMEDIES = {"Invalid operator": "write == for equality, and ~ for a pattern"}
"""Texts of kernel/trace/trace_events_filter.c that do not name the remedy."""


def why(
    files: Tracefs, error: OSError, command: str, *logs: str, meanings: Mapping[int, str] = MEANING
) -> str:
    """Return why the kernel refused ``command``, as one clause: meaning, errno, and what ``logs`` say.

    EINVAL has many meanings, and the log's text replaces them.
    """
    code = error.errno or 0
    meaning = meanings.get(code, error.strerror or str(error))
    name = "ENOTSUPP" if code == ENOTSUPP else errno.errorcode.get(code, str(code))
    for path in logs:
        try:
            said = logged_error(files.read(path).decode(errors="replace"), command)
        except OSError:
            continue
        if said:
            remedy = REMEDIES.get(said.partition(",")[0])
            subject = "the kernel says" if code == errno.EINVAL else meaning
            return f"{subject} ({name}): {said}{f'; {remedy}' if remedy else ''}"
    return f"{meaning} ({name})"


def cannot_make(path: str, error: OSError) -> str:
    """Return a sentence that says why the kernel did not make an instance or its marker."""
    why = {
        errno.EPERM: "the kernel is locked down, or a security module forbids it",
        errno.EACCES: "no permission; run as root, and in a container outside the default AppArmor "
        "profile's paths (mount tracefs at /tracefs and give --tracefs /tracefs)",
        errno.EROFS: "tracefs is mounted read-only; mount it read-write",
        errno.ENOMEM: "no memory for its ring buffer",
        errno.ENOENT: "this tracefs has no instances",
        errno.EINVAL: "the kernel does not take this name",
    }.get(error.errno or 0, error.strerror or str(error))
    return f"{path} cannot be made: {why}."
