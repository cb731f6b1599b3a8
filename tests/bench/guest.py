"""A part of a benchmark run in a VM of each kernel that has kprobes, side by side, emulated.

The part is a program: it gets the path of the file into which it writes what it measured, as JSON.
"""

import compileall
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.vm import BUILD, ROOT
from tests.vm.__main__ import execute
from tests.vm.kernels import KERNELS, Kernel, image

EMULATED = (
    "Emulated (QEMU's TCG, no KVM): times are many times those of a real CPU, to be compared with each other."
)


def in_each_kernel(module: str) -> dict[str, Any]:
    """What the module measured, by the version of the kernel that it ran on."""
    for kernel in KERNELS.values():
        image(kernel)
    for package in ("kprobe_exporter", "tests"):  # the guests cannot write bytecode
        compileall.compile_dir(ROOT / package, quiet=2)
    stop = threading.Event()
    with ThreadPoolExecutor(len(KERNELS)) as pool:
        running = {
            image(k).release.removesuffix("-amd64"): pool.submit(_measure, module, k, stop)
            for k in KERNELS.values()
        }
        try:
            return {version: future.result() for version, future in running.items()}
        except BaseException:
            stop.set()
            raise


def _measure(module: str, kernel: Kernel, stop: threading.Event) -> Any:
    directory = BUILD / "bench" / f"{module.rpartition('.')[2]}-{kernel.series}"
    directory.mkdir(parents=True, exist_ok=True)
    result = directory / "result.json"
    result.unlink(missing_ok=True)
    status = execute(kernel, [sys.executable, "-m", module, str(result)], directory, stop)
    if status or not result.exists():
        raise RuntimeError(f"{module} on {kernel.series} ended with status {status}")
    return json.loads(result.read_text())
