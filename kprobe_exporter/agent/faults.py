"""Faults of tracing and of the agent's probes that other processes can cause, by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias, get_args

OfTheInstance: TypeAlias = Literal["tracefs_gone", "instance_gone", "locked_down", "descriptors_exhausted"]
"""Faults because of which the instance's files cannot be read."""

OfTheMachine: TypeAlias = Literal["ftrace_off", "kprobes_off"]
OfAProbe: TypeAlias = Literal["module_gone", "probe_disabled", "probe_gone"]

Fault: TypeAlias = OfTheInstance | OfTheMachine | OfAProbe | Literal["tracing_off"]

OF_THE_INSTANCE: tuple[Fault, ...] = get_args(OfTheInstance)

MEANING: Mapping[Fault, str] = {
    "tracefs_gone": "tracefs is not where it was mounted: the last counts stay until it is mounted again",
    "instance_gone": "the agent's tracefs instance was removed from outside: restart the agent",
    "locked_down": "the kernel was locked down, which forbids all tracing: the last counts stay",
    "descriptors_exhausted": "no file descriptor is left (EMFILE): raise the limit of open files",
    "tracing_off": "another process wrote 0 to the instance's tracing_on: it is 1 again",
    "ftrace_off": "kernel.ftrace_enabled is 0: probes at the start of functions do not fire until it is 1",
    "kprobes_off": "all kprobes are off (debug/kprobes/enabled is 0): none fires until it is 1",
    "module_gone": "the module of the function was unloaded: it fires when that is loaded again",
    "probe_disabled": "another process disabled it in the agent's instance: it is enabled again",
    "probe_gone": "another process deleted its definition: it is installed again",
}

SWITCHES: Mapping[Fault, Path] = {
    "ftrace_off": Path("/proc/sys/kernel/ftrace_enabled"),
    "kprobes_off": Path("/sys/kernel/debug/kprobes/enabled"),
}
"""Switches of the whole machine (kernel/trace/ftrace.c, kernel/kprobes.c): the agent never changes them."""

REPAIRED: tuple[Fault, ...] = ("tracing_off", "probe_disabled", "probe_gone")
"""Faults that the agent repairs as soon as it notices them."""
