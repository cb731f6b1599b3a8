"""A part of a benchmark run in a VM of each kernel that has kprobes, side by side, emulated.

The part is a program: it gets the path of the file into which it writes what it measured, as JSON.
"""

import compileall
import json
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.vm import BUILD, ROOT
from tests.vm.__main__ import execute
from tests.vm.kernels import WHOLE, Kernel, image

EMULATED = (
    "Emulated (QEMU's TCG, no KVM): times are many times those of a real CPU, to be compared with each other."
)


AT_ONCE = 2
"""Guests that run side by side: each of them needs a processor for itself."""


def in_each_kernel(module: str, kernels: Sequence[Kernel] = WHOLE) -> dict[str, Any]:
    """What the module measured, by the version of the kernel that it ran on."""
    for kernel in kernels:
        image(kernel)
    for package in ("kprobe_exporter", "tests"):  # the guests cannot write bytecode
        compileall.compile_dir(ROOT / package, quiet=2)
    stop = threading.Event()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {
            image(k).release.removesuffix("-amd64"): pool.submit(_measure, module, k, stop) for k in kernels
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
