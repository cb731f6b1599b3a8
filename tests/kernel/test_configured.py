"""Configurations with more than counts: definitions, filters of metrics, scales, chains of decoders."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.kernel_ids import kernel_tid
from tests.support.patience import eventually
from tests.support.provoked_calls import TIMES, opens_of_a_missing_file


@pytest.mark.needs("kprobe_events")
def test_a_definition_in_the_kernels_own_grammar(start_agent: StartAgent) -> None:
    agent = start_agent(f"""
probes:
  - definition: 'r:somebody/myopen do_sys_openat2 rval=$retval:s32'
    filter: "common_pid == {kernel_tid()} && return < 0"
    metrics:
      - counter: myopen_total
        labels: {{rval: rval, errno: {{field: return, decode: errno}}}}
""")
    opens_of_a_missing_file()
    metrics = agent.scrape()
    assert metrics.value("kprobe_myopen_total", rval="-2", errno="ENOENT") == TIMES
    assert metrics.value("kprobe_return_errors_total", probe="myopen", errno="ENOENT") == TIMES


@pytest.mark.needs("kprobe_events")
def test_the_spelling_of_old_documents(start_agent: StartAgent) -> None:
    """The old spelling `a0` is translated to `$arg1`, with a warning."""
    with ThreadPoolExecutor(1) as other:  # a thread that opens nothing else
        agent = start_agent(f"""
probes:
  - definition: 'p:old do_sys_openat2 dfd=a0'
    filter: "common_pid == {other.submit(kernel_tid).result()}"
    metrics:
      - counter: old_total
        labels: {{dfd: {{field: dfd, decode: hex}}}}
""")
        other.submit(opens_of_a_missing_file).result()
    metrics = agent.scrape()
    (labels,) = metrics.labels("kprobe_old_total")
    assert labels["dfd"].endswith("ffffff9c")  # AT_FDCWD, of which only the lower 32 bits are defined
    assert metrics.value("kprobe_old_total", **labels) == TIMES
    assert "warning" in agent.output()
    assert "$arg1" in agent.output()


@pytest.mark.needs("kprobe_events")
def test_filters_scales_and_chains(start_agent: StartAgent) -> None:
    agent = start_agent(f"""
probes:
  - name: open
    attach: kretprobe:do_sys_openat2
    filter: "common_pid == {kernel_tid()}"
    metrics:
      - counter: failed_total
        where: "return == -2"
      - counter: descriptors_total
        where: "return >= 0 && comm != \\"nobody\\""
        value: return
        scale: 0.5
      - counter: by_first_letter_total
        labels: {{letter: {{field: return, decode: [errno, {{regexp: '^E(.)'}}]}}}}
        where: "return < 0"
""")
    opens_of_a_missing_file()
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    metrics = agent.scrape()
    for fd in opened:
        os.close(fd)
    assert metrics.value("kprobe_failed_total") == TIMES
    assert metrics.value("kprobe_by_first_letter_total", letter="N") == TIMES
    # This thread also opens other files, such as the agent's log, so the sum is a lower bound.
    assert metrics.value("kprobe_descriptors_total") >= sum(opened) / 2
    assert metrics.value("kprobe_exporter_decode_failures_total", decoder="regexp") == 0


def test_two_probes_on_one_tracepoint_and_unfiltered_hits(start_agent: StartAgent) -> None:
    """Two probes share a tracepoint, also without eprobes and where only the agent counts the hits."""
    tid = kernel_tid()
    agent = start_agent(f"""
probes:
  - name: failed
    attach: tracepoint:syscalls:sys_exit_openat
    fetch: {{return: ret}}
    filter: "return == -2 && common_pid == {tid}"
    metrics: [{{counter: failed_total, labels: {{errno: {{field: return, decode: errno}}}}}}]
  - name: mine
    attach: tracepoint:syscalls:sys_exit_openat
    fetch: {{return: ret}}
    filter: "common_pid == {tid}"
""")
    opens_of_a_missing_file()
    null = os.open("/dev/null", os.O_RDONLY)
    os.close(null)
    metrics = agent.scrape()
    assert metrics.value("kprobe_up", probe="mine") == 1
    assert metrics.value("kprobe_failed_total", errno="ENOENT") == TIMES
    assert metrics.value("kprobe_exporter_events_total", probe="failed") == TIMES
    assert metrics.value("kprobe_exporter_events_total", probe="mine") > TIMES

    def hits_of_both() -> bool:
        found = agent.scrape()
        hits = [found.value("kprobe_hits_total", probe=probe) for probe in ("failed", "mine")]
        return min(hits) > found.value("kprobe_exporter_events_total", probe="failed")

    eventually(hits_of_both)


@pytest.mark.needs("kprobe_events")
def test_a_string_is_warned_of_and_a_name_is_not(start_agent: StartAgent) -> None:
    agent = start_agent("""
global: {source: text}
probes:
  - name: open
    attach: kprobe:do_sys_openat2
    fetch: {file: "+0($arg2):ustring"}
    filter: 'file ~ "/nonexistent*"'
    metrics: [{counter: opens_total, labels: [file, comm]}]
""")
    (warning,) = [line for line in agent.output().splitlines() if "WARNING" in line]
    assert "reads 'file' from the kernel's text" in warning


@pytest.mark.needs("kprobe_events")
def test_names_that_fill_the_cap_give_way_to_others(start_agent: StartAgent) -> None:
    """A thread that renames itself over and over cannot keep other threads out of the series for good."""
    tid = kernel_tid()
    comm = "/proc/thread-self/comm"
    agent = start_agent(f"""
global: {{max_series: 5, series_ttl: 2s}}
probes:
  - name: open
    attach: kretprobe:do_sys_openat2
    filter: "return == -2 && common_pid == {tid}"
    metrics: [{{counter: failed_total, labels: [comm]}}]
""")
    with open(comm) as file:
        own = file.read().strip()
    try:
        for number in range(10):
            with open(comm, "w") as file:
                file.write(f"hostile{number}")
            opens_of_a_missing_file(1)
    finally:
        with open(comm, "w") as file:
            file.write(own)
    metrics = agent.scrape()
    assert metrics.value("kprobe_failed_total", comm="__overflow__") == 5
    assert metrics.value("kprobe_exporter_series_overflow_total", metric="kprobe_failed_total") == 5

    def has_room() -> bool:
        opens_of_a_missing_file(1)
        return agent.scrape().value("kprobe_failed_total", comm=own) > 0

    eventually(has_room)
