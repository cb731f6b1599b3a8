"""Where the time of threads goes, by the classes of examples/time.yaml."""

from typing import Any

from grafana.frame import build
from grafana.pack import trust
from grafana.panels import RED, YELLOW, graph, number
from grafana.queries import Query, rate, ratio

UID = "kprobe-exporter-time"
TOTAL, UNACCOUNTED = "kprobe_time_seconds_total", "kprobe_time_unaccounted_seconds_total"
PROBE = 'probe="time"'

IDLE = 'class!~"sleep|poll|other|unaccounted"'
"""Threads that wait for work are in these classes, which are most of the time on most machines."""

CLASSES = {
    "running": ("Running", "Threads that have a CPU."),
    "waiting_for_cpu": (
        "Waiting for a CPU",
        "Threads that could run, also where a quota is used up, unless `classes` has `throttled`.",
    ),
    "throttled": (
        "Held back by a quota",
        "Threads that could run, but whose cgroup has used up its CPU time. Needs `classes: [throttled]`.",
    ),
    "block_io": (
        "Waiting for disks",
        "Threads that wait for a page, a request or a journal of a disk.",
    ),
    "lock": ("Waiting for locks", "Threads in futexes, semaphores, and locks of files and of the kernel."),
    "network": ("Waiting for sockets", "Threads in a system call of a socket."),
    "reclaim|page_fault": (
        "Waiting for memory",
        "Threads that sleep in a page fault, or to make room; with `classes: [reclaim]` also those that run"
        " to make room.",
    ),
}


def dashboard() -> Any:
    by_pod = [_by_pod(class_, *words) for class_, words in CLASSES.items()]
    return build(
        UID,
        "Kernel probes: time of threads",
        "What threads do and what they wait for, by the configuration of examples/time.yaml.",
        probe=None,
        rows={
            "At this moment": [_numbers()],
            "All threads": [[_stacked("Without idle threads", IDLE)], [_stacked("All of their time")]],
            "By pod": [by_pod[place : place + 2] for place in range(0, len(by_pod), 2)],
            "How far to trust it": [[_unaccounted()], trust(PROBE)],
        },
    )


def _threads(*matchers: str) -> str:
    return rate(TOTAL, *matchers)


def _of(class_: str) -> str:
    return _threads(f'class="{class_}"')


def _numbers() -> list[Any]:
    return [
        number(
            "Running now",
            "Threads that have a CPU, on average.",
            "short",
            Query(f"sum({_of('running')})", "running"),
        ),
        number(
            "Waiting for a CPU now",
            "Threads that could run and have no CPU, on average.",
            "short",
            Query(f"sum({_of('waiting_for_cpu')})", "waiting"),
        ),
        number(
            "Waiting for disks now",
            "Threads that sleep until a disk has done something, on average. Empty unless one has waited so.",
            "short",
            Query(f"sum({_of('block_io')})", "waiting"),
        ),
        number(
            "Unaccounted now",
            "The share of the threads' time of which too little is known to name its class.",
            "percentunit",
            Query(f"sum({rate(UNACCOUNTED)}) / (sum({_threads()}) > 0)", "unaccounted"),
            limits={0.05: YELLOW, 0.2: RED},
        ),
    ]


def _stacked(title: str, *matchers: str) -> Any:
    return graph(
        title,
        "How many threads did what, on average. The areas add up to the number of threads that are shown. The"
        " agent's /stacks/time.svg has the stacks of each class.",
        "short",
        Query(f"sum by (class) ({_threads(*matchers)})", "{{class}}"),
        stacked=True,
    )


def _by_pod(class_: str, title: str, description: str) -> Any:
    matcher = f'class=~"{class_}"' if "|" in class_ else f'class="{class_}"'
    seldom = "" if class_ in ("running", "waiting_for_cpu") else " Empty unless one has waited so."
    return graph(
        f"{title}, by pod",
        f"{description} The ten pods with most of them; a thread in no pod has an empty name.{seldom}",
        "short",
        Query(f"topk(10, sum by (pod) ({_threads(matcher)}))", "{{pod}}"),
        stacked=True,
    )


def _unaccounted() -> Any:
    return graph(
        "Unaccounted",
        "The share of the threads' time of which too little is known: events were lost, or a thread sleeps"
        " since before the agent started, and it may not be looked into.",
        "percentunit",
        Query(ratio(rate(UNACCOUNTED), _threads(), "instance"), "{{instance}}"),
    )
