"""Which containers a selector of the configuration or the command line fits, and their processes."""

from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path

from kprobe_exporter.config.model import Within
from kprobe_exporter.errors import StartError
from kprobe_exporter.identity.containers import Container
from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.identity.running import RunningContainers
from kprobe_exporter.identity.thread_sets import processes
from kprobe_exporter.model.values import SHORT_ID

MAX_NAMES = 5
"""Containers in the sentence that says which there are."""


def selects(within: Within, pods: Pods, one: Container) -> bool:
    """Return whether a container is one of those that ``within`` describes."""
    pod = pods.find(one.id, one.pod) if one.pod is not None or within.pod is not None else None
    return within.selects(
        one.id,
        None if pod is None else pod.container,
        None if pod is None else f"{pod.namespace}/{pod.name}",
    )


def in_containers(within: Within, proc: Path) -> Callable[[int], bool]:
    """Return a function that tells whether a process is in a container that ``within`` selects.

    Raises StartError with the names that there are, the nearest first, if it selects none now.
    """
    running, pods = RunningContainers(proc), Pods()
    there = {one for pid in processes(proc) if (one := running.container(pid)) is not None}
    if not any(selects(within, pods, one) for one in there):
        names = sorted({_name(one, pods, pod_only=within.container is None) for one in there} - {""})
        wanted = (within.container or within.pod or "").strip("*")
        names.sort(key=lambda name: SequenceMatcher(None, wanted, name).ratio(), reverse=True)
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        those = f"there are {', '.join(names[:MAX_NAMES])}{more}" if names else "there is none"
        raise StartError(f"no container that runs fits {within}: {those}.")

    def inside(pid: int) -> bool:
        found = running.container(pid)
        return found is not None and selects(within, pods, found)

    return inside


def _name(one: Container, pods: Pods, *, pod_only: bool) -> str:
    """Return the name of a container, or else its short id; or that of its pod, "" if it is in none."""
    pod = pods.find(one.id, one.pod)
    if pod_only:
        return "" if pod is None else f"{pod.namespace}/{pod.name}"
    return one.id[:SHORT_ID] if pod is None or pod.container is None else pod.container
