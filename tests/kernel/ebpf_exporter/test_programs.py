"""Examples of programs: functions of libraries, and the USDT probes of Python and PHP."""

import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.ebpf_exporter.counted import TIMES, Grown
from tests.support.compiling import compiled

pytestmark = pytest.mark.needs("uprobe_events")

EXAMPLES = ("php", "uprobe", "usdt")

ALLOCATES = """
#include <stdlib.h>
int main(void) {
  for (volatile int number = 0; number < COUNT; number++)
    if (!malloc(64)) return 1;
  return 0;
}
"""
COUNT = 1000


@pytest.fixture
def group() -> Iterator[Path]:
    where = Path("/sys/fs/cgroup/allocates")
    where.mkdir()
    yield where
    where.rmdir()


@pytest.mark.needs("kprobe_events")  # as in the VM, where the hierarchy of cgroups is the unified one
def test_calls_of_malloc_by_cgroup(grown: Grown, group: Path, tmp_path: Path) -> None:
    """The program makes this many calls; the start of a C program makes none or few."""
    program = compiled(tmp_path / "allocates", f"#define COUNT {COUNT}\n{ALLOCATES}", "-O0")
    enter = f'echo 0 > {group}/cgroup.procs; exec "$0"'
    subprocess.run(["/bin/dash", "-c", enter, program], check=True)
    seen = grown("libc_malloc_calls_total", cgroup=f"/{group.name}")
    assert COUNT <= seen <= COUNT + 20


def test_modules_that_python_looks_for(grown: Grown, tmp_path: Path) -> None:
    """Python 3.11 fires its probe of functions for few of them only, but its start is among those."""
    script = tmp_path / "shop.py"
    script.write_text(f"import sys\nfor _ in range({TIMES}):\n    import wave\n    del sys.modules['wave']\n")
    subprocess.run(["/usr/bin/python3.11", "-S", "-E", script], check=True)
    metrics = grown.agent.scrape()
    assert grown.of(metrics, "python_imports_total", module="wave") == TIMES
    assert grown.of(metrics, "python_function_entries_total", module="<frozen getpath>") > 0


def test_files_that_php_compiles(grown: Grown, tmp_path: Path) -> None:
    """Each run of PHP compiles the file once. Debian's PHP has its probes off unless the variable is 1. On
    arm64 it has none."""
    part, script = tmp_path / "part.php", tmp_path / "shop.php"
    part.write_text("<?php return 1;")
    script.write_text(f"<?php for ($i = 0; $i < {TIMES}; $i++) include '{part}';")
    subprocess.run(["/usr/bin/php8.2", "-n", script], check=True, env={"USE_ZEND_DTRACE": "1"})
    metrics = grown.agent.scrape()
    if platform.machine() == "aarch64":
        assert metrics.value("kprobe_up", probe="php_compile_file") == 0
        return
    assert grown.of(metrics, "php_compile_file_total", file=str(part)) == TIMES
    assert grown.of(metrics, "php_compile_file_total", file=str(script)) == 1
