"""Saves the running kernel as a fixture: `python -m tests.kernel.capture_kernel FILE`.

It is what `doctor --save FILE` writes, without what no shipped configuration asks for and what takes 0.3 MB:
the types of modules, and symbols of data, which cannot be probed anyway.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from kprobe_exporter.diagnose.saved_kernel import save, take
from kprobe_exporter.symbols.lists import SYMBOLS, TEXT
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.kernel_files import BTF, running_kernel
from kprobe_exporter.tracefs.mount import mounted

TYPES = TEXT.encode()


def reduced(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a kernel, as `take` gives them, without those parts."""
    kept = {name: content for name, content in files.items() if not name.startswith(BTF) or "vmlinux" in name}
    lines = kept[SYMBOLS].splitlines(keepends=True)
    return {**kept, SYMBOLS: b"".join(line for line in lines if line.split()[1] in TYPES)}


if __name__ == "__main__":
    with mounted() as tracefs:
        size = save(reduced(take(running_kernel(ReadOnlyTracefs(tracefs)))), Path(sys.argv[1]))
    print(f"{sys.argv[1]}: {size} bytes")
