"""``errno``: an error return as its name (ENOENT), ``ok`` for other values from 0 on."""

import errno

from kprobe_exporter.labels._text import numbered, without_options
from kprobe_exporter.model.values import MAX_ERRNO, Value

_IN_KERNEL = """
    ERESTARTSYS ERESTARTNOINTR ERESTARTNOHAND ENOIOCTLCMD ERESTART_RESTARTBLOCK EPROBE_DEFER EOPENSTALE
    ENOPARAM - EBADHANDLE ENOTSYNC EBADCOOKIE ENOTSUPP ETOOSMALL ESERVERFAULT EBADTYPE EJUKEBOX EIOCBQUEUED
    ERECALLCONFLICT ENOGRACE
"""
"""Errors that are used only inside the kernel, from 512 on: include/linux/errno.h."""

NAMES = {**errno.errorcode, **numbered(_IN_KERNEL, 512), 133: "EHWPOISON"}
NAMES |= {errno.EDEADLK: "EDEADLK", errno.EOPNOTSUPP: "EOPNOTSUPP"}
"""The kernel's numbers, include/uapi/asm-generic/errno-base.h and errno.h, which the C library has too.
Python knows EHWPOISON from 3.14 on, and has other names for the last two numbers."""


def name_of(number: int) -> str | None:
    """Return the name of a positive error number, None if the kernel has none."""
    return NAMES.get(number)


def decode(value: Value) -> str | None:
    """Return a name for -4095 … -1, which are errors, also if 64 bits were read as an unsigned number."""
    if not isinstance(value, int):
        return None
    for wrap in (0, 1 << 64):
        if wrap - MAX_ERRNO <= value < wrap:
            return NAMES.get(wrap - value)
    return "ok" if value >= 0 else None


decoder = without_options("errno", decode)
