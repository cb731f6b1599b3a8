"""The kernels under test, as data, and the unpacking of their packages."""

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.vm import BUILD
from tests.vm.debian import OWN, PackageError, Suite, unpack
from tests.vm.foreign import ARCHITECTURES, Architecture


@dataclass(frozen=True)
class Kernel:
    """One kernel series of Debian.

    `series` is what its packages are named after, as in linux-image-SERIES…-FLAVOUR: "6.1" for the flavour
    amd64, "6.12-arm64-16k" for another one. `packages` are the beginnings of the names of those that make up
    the kernel, in `suite`. `passed` is the last version that passed the tests: it is taken as long as the
    mirror has it, otherwise the newest one.

    `absent` names the features that this series is known to lack, as `@pytest.mark.needs` spells them. In the
    VM, a skip for any other reason is a failure.

    On a kernel with `core`, `make test` runs only these tests, and none on one that is `on_request`;
    `make vmtest KERNEL=SERIES` runs all tests. On the others it draws files of tests, without those in
    `elsewhere` and without tests that are LONG. Those in `elsewhere` do not depend on the kernel, or run on
    another one with the same features, so that both have about equal work.
    """

    series: str
    suite: Suite = OWN
    packages: tuple[str, ...] = ("linux-image",)
    passed: str | None = None
    core: tuple[str, ...] = ()
    on_request: bool = False
    absent: frozenset[str] = frozenset()
    elsewhere: tuple[str, ...] = ()

    @property
    def foreign(self) -> Architecture | None:
        """The architecture, unless its programs run on this machine."""
        return ARCHITECTURES.get(self.suite.arch)

    @property
    def flavour(self) -> str:
        return self.series.partition("-")[2] or "amd64"

    def newest(self, names: Iterable[str]) -> str | None:
        """The version to take of those in the packages' names: `passed`, else the highest, else None."""
        series = re.escape(self.series.partition("-")[0])
        version = rf"({series}\.[0-9]+[0-9a-z.+]*(?:-[0-9]+)?)"
        pattern = re.compile(f"{self.packages[0]}-{version}-{self.flavour}")
        found = [match[1] for match in map(pattern.fullmatch, names) if match]
        if self.passed in found:
            return self.passed
        return max(found, key=_numbers, default=None)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


CORE = (
    "tests/faults/test_privilege.py::test_it_does_all_of_its_work[no capability]",
    "tests/kernel/test_kinds.py",
    "tests/kernel/test_calls.py::test_a_function_that_calls_itself",
    "tests/kernel/test_calls.py::test_a_pair",
    "tests/kernel/test_calls.py::test_a_system_call",
    "tests/kernel/test_counted_stacks.py::test_a_reload_keeps_them",
    "tests/kernel/test_filters.py",
    "tests/kernel/test_lifecycle.py::test_a_killed_agents_leftovers_go_at_the_next_start",
    "tests/kernel/test_members.py::test_connections_by_address_and_port[call-binary]",
    "tests/kernel/test_members.py::test_connections_by_address_and_port[kprobe-text]",
    "tests/kernel/test_names.py",
    "tests/kernel/test_packs.py::test_each_probe_sees_what_it_is_for[disk]",
    "tests/kernel/test_packs.py::test_each_probe_sees_what_it_is_for[scheduler]",
    "tests/kernel/test_reload.py::test_who_changes_goes_on",
)
"""Whether every kind of probe counts; calls, pairs, stacks, filters, strings, packs; names and members that
depend on the kernel; a reload, a start after a kill, and an agent without capabilities."""

LONG = (
    "tests/faults/test_budget.py::test_a_critical_probe_is_sampled_by_threads[kprobe]",
    "tests/faults/test_budget.py::test_too_loud_a_probe_is_off_for_a_while[counted]",
    "tests/faults/test_machine.py::test_memory_is_short",
    "tests/faults/test_machine.py::test_the_clock_is_stepped[-86400]",
    "tests/faults/test_machine.py::test_what_is_exported_has_the_time_of_day_of_its_moment[-86400]",
    "tests/faults/test_memory_limit.py::test_clients_of_many_addresses",
    "tests/faults/test_memory_limit.py::test_clients_of_one_ipv6_site",
    "tests/faults/test_memory_limit.py::test_flood_of_unfinished_handshakes",
    "tests/faults/test_memory_limit.py::test_programs_with_forged_stacks",
    "tests/faults/test_memory_limit.py::test_threads_that_end_at_once",
    "tests/faults/test_privilege.py::test_it_does_all_of_its_work[AppArmor]",
    "tests/faults/test_privilege.py::test_it_does_all_of_its_work[no capability]",
    "tests/faults/test_privilege.py::test_it_does_all_of_its_work[no new privileges]",
    "tests/faults/test_privilege.py::test_it_does_all_of_its_work[read-only root]",
    "tests/faults/test_privilege.py::test_it_does_all_of_its_work[seccomp]",
    "tests/faults/test_soak.py::test_it_neither_grows_nor_loses_a_count",
    "tests/faults/test_systemd.py::test_with_names_of_addresses",
    "tests/kernel/differential/test_oracles.py::test_bpftrace_and_the_profile_count_the_same",
    "tests/kernel/ebpf_exporter/test_cgroups.py::test_a_cgroup_is_held_back",
    "tests/kernel/ebpf_exporter/test_packets.py::test_datagrams_by_port[127.0.0.1]",
    "tests/kernel/test_check_against.py::test_a_kernel_that_was_saved_now",
    "tests/kernel/test_check_against.py::test_the_commands",
    "tests/kernel/test_check_against.py::test_the_fixture_of_this_kernel",
    "tests/kernel/test_check_live.py::test_any_symbol",
    "tests/kernel/test_check_live.py::test_it_foretells_what_run_settles_on[one_liners.yaml]",
    "tests/kernel/test_counted_stacks.py::test_off_cpu_time[text]",
    "tests/kernel/test_exact_hits.py::test_reloads_under_load",
    "tests/kernel/test_functions.py::test_what_a_pattern_names_installs",
    "tests/kernel/test_killed_recorders.py::test_killed_at_drawn_moments",
    "tests/kernel/test_latency_examples.py::test_biolatency",
    "tests/kernel/test_list.py::test_a_closed_pipe_is_no_error",
    "tests/kernel/test_list.py::test_each_of_some_functions_can_be_defined",
    "tests/kernel/test_list.py::test_the_functions_are_those_of_the_kernels_files",
    "tests/kernel/test_packs.py::test_the_one_liners",
    "tests/kernel/test_pages.py::test_kprobes_on_all_cpus",
    "tests/kernel/test_pages.py::test_tracepoints_on_all_cpus",
    "tests/kernel/test_postgresql.py::test_each_probe_sees_what_it_is_for",
    "tests/kernel/test_postgresql.py::test_semaphores_are_0_before_and_after",
    "tests/kernel/test_readme.py::test_a_configuration_is_checked_against_a_saved_kernel",
    "tests/kernel/test_readme.py::test_the_packs_at_once",
    "tests/kernel/test_reload.py::test_a_long_life_gathers_nothing",
    "tests/kernel/test_reload.py::test_every_kind_comes_and_goes",
    "tests/kernel/test_reload.py::test_many_new_definitions_are_pruned",
    "tests/kernel/test_replaced_files.py::test_a_new_file_without_the_function",
    "tests/kernel/test_replaced_files.py::test_many_replacements_gather_nothing",
    "tests/kernel/test_sessions.py::test_agent_that_stops",
    "tests/kernel/test_sessions.py::test_budget",
    "tests/kernel/test_sessions.py::test_killed_tool_is_cleaned_up",
    "tests/kernel/test_sessions.py::test_other_users",
    "tests/kernel/test_sessions.py::test_reader_that_has_gone",
    "tests/kernel/test_sessions.py::test_rows_are_the_loads[killsnoop-kills]",
    "tests/kernel/test_sessions.py::test_rows_are_the_loads[syscount -P-system_calls]",
    "tests/kernel/test_sessions.py::test_silent_and_broken_clients_beside_a_session",
    "tests/kernel/test_sessions.py::test_time_is_over",
    "tests/kernel/test_sessions.py::test_tool_that_cannot_be_says_why",
    "tests/kernel/test_stacks.py::test_events_with_stacks_are_counted_and_nothing_is_unparsed[text]",
    "tests/kernel/test_symbols.py::test_addresses_are_what_the_kernel_prints",
    "tests/kernel/test_symbols.py::test_without_the_capability",
    "tests/kernel/test_tour.py::test_every_command_does_what_it_shows",
    "tests/kernel/test_trace_end.py::test_a_signal_at_any_moment",
    "tests/kernel/test_trace_examples.py::test_a_row[kprobe p:do_sys_open]",
    "tests/kernel/test_trace_records.py::test_a_return_with_its_stack",
    "tests/kernel/test_trace_records.py::test_what_the_kernel_refuses_of_a_pattern",
)
"""Tests that only `make vmtest` runs: each takes up to a minute of a busy machine, and most of what it sees
fail is seen by another one, too."""

OTHERWISE = ("tests/kernel/test_machines.py", "tests/kernel/test_pid_namespace.py")
"""Files that `make test` runs on machines of other shapes and in a PID namespace, not on a usual machine."""

ARM64 = Suite("bookworm-security", "Debian-Security", arch="arm64")

FPROBES = "f[:[<group>/][<event>]]"
"""What the README of tracefs has where the kernel has fprobe events. On arm64 it may lack them though it has
``available_filter_functions_addrs``."""
REQUEST_START = "events/block/block_io_start"
"""The tracepoint of a new request to a block device, which came with Linux 6.5."""
ALL_FILTERS = "show_event_filters"
"""What came with Linux 7.0."""
EPROBES = "e[:[<group>/]"
"""What that README has where the kernel has eprobes: Linux 5.15 and later."""
WITHOUT_ADDRESSES = frozenset({"available_filter_functions_addrs", "buffer_subbuf_size_kb"})
"""What came with Linux 6.5 and 6.8."""
HIST = "events/sched/sched_process_exec/hist"
"""A file that every kernel with hist triggers has. Debian 11 builds its kernel without them."""

USER_STACKS = "arch_stack_walk_user"
"""The function by which a kernel follows a program's frame pointers. arm64's have none."""
STATIC_DATA = "bpf_jit_current"
"""A variable that a kernel knows by its name where it keeps those of all data: Debian's for arm64 do not."""
SYMBOLS = frozenset({USER_STACKS, STATIC_DATA})
"""Features that are symbols of the kernel."""

KERNELS = {
    kernel.series: kernel
    for kernel in (
        Kernel(
            "6.1",
            absent=WITHOUT_ADDRESSES | {FPROBES, ALL_FILTERS, REQUEST_START},
            elsewhere=(
                "tests/faults/test_faults.py",
                "tests/faults/test_machine.py",
                "tests/faults/test_privilege.py",
                "tests/kernel/differential/test_oracles.py",
                "tests/kernel/ebpf_exporter",
                "tests/kernel/test_calls.py",
                "tests/kernel/test_container_programs.py",
                "tests/kernel/test_default.py",
                "tests/kernel/test_doctor.py",
                "tests/kernel/test_documented.py",
                "tests/kernel/test_exact_hits.py",
                "tests/kernel/test_functions.py",
                "tests/kernel/test_kinds.py",
                "tests/kernel/test_lifecycle.py",
                "tests/kernel/test_list.py",
                "tests/kernel/test_members.py",
                "tests/kernel/test_packs.py",
                "tests/kernel/test_pages.py",
                "tests/kernel/test_readme.py",
                "tests/kernel/test_reload.py",
                "tests/kernel/test_removal.py",
                "tests/kernel/test_symbols.py",
                "tests/kernel/test_system_calls.py",
                "tests/kernel/test_thread_ends.py",
                "tests/kernel/test_trace_end.py",
                "tests/kernel/test_trace_records.py",
                "tests/kernel/test_trace_text.py",
                "tests/kernel/test_trace_warnings.py",
                "tests/kernel/test_ucalls.py",
                "tests/kernel/test_user_stacks.py",
            ),
        ),
        Kernel(
            "6.12",
            absent=frozenset({ALL_FILTERS}),
            elsewhere=(
                "tests/faults/test_budget.py",
                "tests/faults/test_flooded.py",
                "tests/faults/test_killed.py",
                "tests/faults/test_logs.py",
                "tests/faults/test_stuck.py",
                "tests/faults/test_systemd.py",
                "tests/kernel/differential/test_bursts.py",
                "tests/kernel/differential/test_differential.py",
                "tests/kernel/test_binary.py",
                "tests/kernel/test_bridged.py",
                "tests/kernel/test_callers.py",
                "tests/kernel/test_check_against.py",
                "tests/kernel/test_check_live.py",
                "tests/kernel/test_configured.py",
                "tests/kernel/test_containers.py",
                "tests/kernel/test_counted_stacks.py",
                "tests/kernel/test_counts.py",
                "tests/kernel/test_exact_values.py",
                "tests/kernel/test_event_fields.py",
                "tests/kernel/test_filters.py",
                "tests/kernel/test_kernel_plan.py",
                "tests/kernel/test_large_records.py",
                "tests/kernel/test_latency_examples.py",
                "tests/kernel/test_otlp.py",
                "tests/kernel/test_otlp_examples.py",
                "tests/kernel/test_ownership.py",
                "tests/kernel/test_postgresql.py",
                "tests/kernel/test_refusals.py",
                "tests/kernel/test_replaced_files.py",
                "tests/kernel/test_runbook.py",
                "tests/kernel/test_stacks.py",
                "tests/kernel/test_swapped_files.py",
                "tests/kernel/test_tour.py",
                "tests/kernel/test_trace_examples.py",
                "tests/kernel/test_uprobes.py",
                "tests/kernel/test_usdt.py",
            ),
        ),
        Kernel(
            "5.10",
            suite=Suite("bullseye-security", "Debian-Security"),
            core=CORE,
            absent=WITHOUT_ADDRESSES | {EPROBES, FPROBES, HIST, ALL_FILTERS, REQUEST_START},
        ),
        Kernel(
            "7.2",
            suite=Suite("sid"),
            packages=("linux-binary", "linux-base", "linux-modules"),
            passed="7.2.13+deb14",
            core=CORE,
        ),
        # Its first run makes a root file system of its own, and a test takes 9 s: so its core is shorter.
        Kernel(
            "6.1-arm64",
            suite=ARM64,
            core=("tests/kernel/test_kinds.py::test_23_calls",),
            absent=WITHOUT_ADDRESSES | SYMBOLS | {FPROBES, ALL_FILTERS, REQUEST_START},
        ),
        # Its pages have 16 KiB, and so have those of the ring buffer.
        Kernel(
            "6.12-arm64-16k",
            suite=ARM64,
            core=CORE,
            on_request=True,
            absent=SYMBOLS | {FPROBES, ALL_FILTERS},
        ),
    )
}
DEFAULT = tuple(kernel.series for kernel in KERNELS.values() if not kernel.on_request)
"""The kernels of `make test` and `make vmtest` unless others are named."""
WHOLE = [kernel for kernel in KERNELS.values() if not kernel.core]
"""The kernels on which `make test` runs more than a core."""
MAIN = KERNELS["6.12"]
"""The one kernel for what needs just one."""


@dataclass(frozen=True)
class Image:
    """An unpacked kernel: the file to boot, the release as `uname -r` prints it, and its modules."""

    vmlinuz: Path
    release: str
    modules: Path


def image(kernel: Kernel) -> Image:
    """Return the newest package of the series, unpacked at the first call.

    It is the plain kernel. The cloud kernel lacks 9p, by which the guest reads this machine's files.
    """
    root = BUILD / "kernels" / kernel.series
    if not root.exists():
        version = _newest(kernel)
        packages = [f"{package}-{version}-{kernel.flavour}" for package in kernel.packages]
        unpack(root, *packages, suite=kernel.suite)
    if not (root / "lib").exists():  # Newer packages have merged /lib into /usr/lib.
        (root / "lib").symlink_to("usr/lib")
    (modules,) = (root / "lib/modules").iterdir()
    release = modules.name
    # From 7.2 on, the kernel is among its modules.
    places = (root / "boot" / f"vmlinuz-{release}", modules / "vmlinuz")
    vmlinuz = next(place for place in places if place.exists())
    if not (modules / "modules.dep.bin").exists():
        subprocess.run(["/sbin/depmod", "-b", root, release], check=True)
    return Image(vmlinuz, release, modules)


def _newest(kernel: Kernel) -> str:
    """The version of the packages to take. Raises PackageError if apt knows none."""
    suite = kernel.suite
    version = kernel.newest(suite.names()) or kernel.newest(suite.names(update=True))
    if version is None:
        raise PackageError(f"apt knows no kernel {kernel.series}: run apt-get update as root and try again")
    return version
