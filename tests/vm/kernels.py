"""The kernels under test, as data, and the unpacking of their packages."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.vm import BUILD
from tests.vm.debian import newest, unpack


@dataclass(frozen=True)
class Kernel:
    """One kernel series of Debian.

    `absent` names the features that this series is known to lack, as `@pytest.mark.needs` spells them. In the
    VM, a skip for any other reason is a failure. `also` lists long tests for which one kernel is enough.
    `elsewhere` lists tests that do not depend on the kernel. `make test` runs them on the other kernel only,
    so that both have about equal work; `make vmtest` runs them on all.
    """

    series: str
    absent: frozenset[str] = frozenset()
    also: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


KERNELS = {
    kernel.series: kernel
    for kernel in (
        Kernel(
            "6.1",
            absent=frozenset({"available_filter_functions_addrs", "buffer_subbuf_size_kb"}),
            elsewhere=(
                "tests/faults/test_faults.py",
                "tests/faults/test_machine.py",
                "tests/faults/test_privilege.py",
                "tests/kernel/differential/test_oracles.py",
                "tests/kernel/test_default.py",
                "tests/kernel/test_doctor.py",
                "tests/kernel/test_documented.py",
                "tests/kernel/test_functions.py",
                "tests/kernel/test_lifecycle.py",
                "tests/kernel/test_list.py",
                "tests/kernel/test_otlp.py",
                "tests/kernel/test_packs.py",
                "tests/kernel/test_readme.py",
                "tests/kernel/test_reload.py",
                "tests/kernel/test_swapped_files.py",
                "tests/kernel/test_symbols.py",
                "tests/kernel/test_thread_ends.py",
                "tests/kernel/test_trace_end.py",
                "tests/kernel/test_trace_examples.py",
                "tests/kernel/test_trace_records.py",
                "tests/kernel/test_trace_text.py",
                "tests/kernel/test_trace_warnings.py",
                "tests/kernel/test_ucalls.py",
            ),
        ),
        Kernel(
            "6.12",
            also=("tests/faults/test_soak.py",),
            elsewhere=(
                "tests/faults/test_budget.py",
                "tests/faults/test_flooded.py",
                "tests/faults/test_logs.py",
                "tests/faults/test_stuck.py",
                "tests/faults/test_systemd.py",
                "tests/kernel/test_check_live.py",
                "tests/kernel/test_configured.py",
                "tests/kernel/test_containers.py",
                "tests/kernel/test_latency_examples.py",
                "tests/kernel/test_otlp_examples.py",
                "tests/kernel/test_ownership.py",
                "tests/kernel/test_replaced_files.py",
                "tests/kernel/test_runbook.py",
                "tests/kernel/test_tour.py",
            ),
        ),
    )
}


@dataclass(frozen=True)
class Image:
    """An unpacked kernel: the file to boot, and the release as `uname -r` prints it."""

    vmlinuz: Path
    release: str


def image(kernel: Kernel) -> Image:
    """Return the newest package of the series, unpacked at the first call.

    It is the plain kernel. The cloud kernel lacks 9p, by which the guest reads this machine's files.
    """
    root = BUILD / "kernels" / kernel.series
    if not root.exists():
        series = kernel.series.replace(".", r"\.")
        unpack(newest(rf"linux-image-{series}\.[0-9]+[0-9a-z.+]*(-[0-9]+)?-amd64"), root)
    if not (root / "lib").exists():  # Newer packages have merged /lib into /usr/lib.
        (root / "lib").symlink_to("usr/lib")
    vmlinuz = next((root / "boot").glob("vmlinuz-*"))
    release = vmlinuz.name.removeprefix("vmlinuz-")
    if not (root / "lib/modules" / release / "modules.dep.bin").exists():
        subprocess.run(["/sbin/depmod", "-b", root, release], check=True)
    return Image(vmlinuz, release)
