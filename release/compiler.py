"""The C compiler for every processor: clang with glibc 2.17, of PyPI's ziglang.

setuptools calls it with the options of the Python that builds. The wrapper passes on only what is to be
compiled and where this project's headers are, so that the options are the same for every builder.
"""

import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from release import tools
from release.targets import BUILD, ReleaseError, Target

OPTIONS = "-O2 -DNDEBUG -DPy_LIMITED_API=0x030B0000 -fPIC -fstack-protector-strong -fvisibility=hidden"
LINKED = "-shared -s -Wl,-z,relro,-z,now"

WRAPPER = """\
#!{python} -I
import os, subprocess, sys

arguments = sys.argv[1:]
out = arguments[arguments.index("-o") + 1]
sources = [word for word in arguments if word.endswith((".c", ".o")) and word != out]
options = ["-c"] if "-c" in arguments else {linked!r}.split()
command = [sys.executable, "-m", "ziglang", "cc", "-target", {triple!r}, *{options!r}.split(), *options]
command += [word for word in arguments if word.startswith("-Ikprobe_exporter/")]
command += [f"-ffile-prefix-map={{os.getcwd()}}=.", "-I", {headers!r}, *sources, "-o", out]
sys.exit(subprocess.run(command).returncode)
"""


def variables(target: Target, directory: Path) -> Mapping[str, str]:
    """Write the wrapper for a processor into a directory; return what setuptools needs to use it."""
    wrapper = directory / f"cc-{target.machine}"
    wrapper.write_text(
        WRAPPER.format(
            python=tools.environment() / "bin/python",
            triple=target.triple,
            options=OPTIONS,
            linked=LINKED,
            headers=str(_headers(directory)),
        )
    )
    wrapper.chmod(0o755)
    return {
        "CC": str(wrapper),
        "LDSHARED": str(wrapper),
        "_PYTHON_HOST_PLATFORM": f"linux-{target.machine}",
        "ZIG_GLOBAL_CACHE_DIR": str(BUILD / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(BUILD / "zig"),
    }


def _headers(directory: Path) -> Path:
    """Copy this Python's headers with one pyconfig.h for all targets.

    The targets agree in all that the limited API asks of it: both are little-endian and LP64. Debian's own
    pyconfig.h includes that of the processor that is compiled for, which is not installed.
    """
    headers = directory / "include"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise ReleaseError(f"{sys.executable} has no headers: Debian's are in the package python3-dev")
    if not headers.exists():
        shutil.copytree(sysconfig.get_paths()["include"], headers)
        config = Path(sysconfig.get_config_h_filename())
        multiarch = sysconfig.get_config_var("MULTIARCH")
        dispatched = config.parent.parent / str(multiarch) / config.parent.name / config.name
        shutil.copy(dispatched if dispatched.exists() else config, headers / config.name)
    return headers
