"""The places that only the load reaches: its own functions, and system calls that nothing else makes."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

ENTRIES = frozenset({"kprobe", "fentry", "uprobe", "enter"})
"""Kinds of one event, at the entry; "enter" and "exit" are the tracepoints of a system call."""
RETURNS = frozenset({"kretprobe", "fexit", "uretprobe", "exit"})
CALLS = frozenset({"call", "ucall", "syscall"})

USER = ("uprobe", "uretprobe", "ucall")
SYSTEM_CALL = ("kprobe", "kretprobe", "call", "fentry", "fexit", "syscall", "enter", "exit")

WITHOUT_FPROBES: Mapping[str, str] = MappingProxyType({"fentry": "kprobe", "fexit": "kretprobe"})
"""What stands in for a kind on a kernel without fprobes, such as 6.1."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function or system call: its number, and which value of a firing it is."""

    name: str
    place: int
    attribute: Literal["a", "b", "text"]
    type: str = "s64"


@dataclass(frozen=True)
class Point:
    """A function of the load or a system call. If the ``thread_changes`` inside, it has no name and CPU."""

    name: str
    kinds: tuple[str, ...]
    parameters: tuple[Parameter, ...] = ()
    thread_changes: bool = False

    def attach(self, kind: str, program: str) -> str:
        """The text of ``attach``."""
        if kind in USER:
            return f"{kind}:{program}:{self.name}"
        if kind == "syscall":
            return f"syscall:{self.name}"
        if kind in ("enter", "exit"):
            return f"tracepoint:syscalls:sys_{kind}_{self.name}"
        return f"{kind}:sys_{self.name}"

    def expression(self, kind: str, parameter: Parameter, type_: str) -> str:
        """The text of ``fetch`` for a parameter that is read as this type."""
        if kind in ("syscall", "enter"):
            return parameter.name
        place = f"$arg{parameter.place}"
        if type_ == "string":
            return f"+0({place}):{'string' if kind in USER else 'ustring'}"
        return f"{place}:{type_}"


def _user(name: str, *parameters: Parameter) -> Point:
    return Point(name, USER, parameters)


def _system_call(name: str, *parameters: Parameter) -> Point:
    return Point(name, SYSTEM_CALL, parameters)


POINTS: Mapping[str, Point] = MappingProxyType(
    {
        point.name: point
        for point in (
            _user("take_value", Parameter("value", 1, "a"), Parameter("text", 2, "text", "string")),
            _user("go_deeper", Parameter("depth", 1, "a"), Parameter("value", 2, "b")),
            _user("take_nap", Parameter("microseconds", 1, "a")),
            _user("fork_inside", Parameter("value", 1, "a")),
            _user("quit_inside", Parameter("value", 1, "a"), Parameter("quits", 2, "b")),
            _user("leap_out", Parameter("value", 1, "a"), Parameter("leaps", 2, "b")),
            _user("pair_begin", Parameter("key", 1, "a"), Parameter("value", 2, "b")),
            _user("pair_end", Parameter("key", 1, "a"), Parameter("value", 2, "b")),
            _system_call("setfsuid", Parameter("uid", 1, "a", "u32")),
            _system_call("sched_get_priority_max", Parameter("policy", 1, "a", "s32")),
            _system_call("getpriority", Parameter("which", 1, "a", "s32"), Parameter("who", 2, "b", "s32")),
            _system_call("chroot", Parameter("filename", 1, "text", "string")),
            _system_call("rt_sigtimedwait"),
            Point("execve", ("syscall", "enter"), thread_changes=True),
        )
    }
)
