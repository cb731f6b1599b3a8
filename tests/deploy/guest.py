"""Runs the image's command in a VM, as a container runtime would: `python -m tests.deploy.guest ROOT CONFIG`.

ROOT is the image as a directory, CONFIG its configuration as JSON. tracefs is mounted into it. Its command
runs there as uid 0 without capabilities and without a way to get any. Printed as JSON: the metrics that it
serves, its exit status, and the instances and probes in the kernel before and after.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from tests.support.patience import eventually, patience

TRACEFS = Path("/sys/kernel/tracing")
ADDRESS = "http://127.0.0.1:10435"
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38  # include/uapi/linux/prctl.h


def main(root: Path, config: dict[str, Any]) -> None:
    if not (TRACEFS / "README").exists():
        subprocess.run(["mount", "-t", "tracefs", "nodev", TRACEFS], check=True)
    subprocess.run(["mount", "--bind", TRACEFS, root / "tracefs"], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    before = left_in_the_kernel()
    pid = os.fork()
    if pid == 0:
        _run(root, config)
    _get("/-/ready")
    for _ in range(23):
        try:
            os.open("/proc", os.O_WRONLY)
        except IsADirectoryError:
            continue
    metrics = _get("/metrics")
    os.kill(pid, signal.SIGTERM)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    told = {"metrics": metrics, "status": status, "before": before, "after": left_in_the_kernel()}
    print(json.dumps(told), flush=True)


def _run(root: Path, config: dict[str, Any]) -> NoReturn:
    """Become the image's command; exit with 127 if that is impossible."""
    try:
        confine(root)
        command = [*config["Entrypoint"], *config["Cmd"]]
        os.execvpe(command[0], command, dict(pair.split("=", 1) for pair in config["Env"]))
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def confine(root: Path) -> None:
    """Do what `--cap-drop ALL`, `no-new-privileges` and the image's root file system do to a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.chroot(root)
    os.chdir("/")
    for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_CAPBSET_DROP)")
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def left_in_the_kernel() -> list[str]:
    """Instances and probe definitions."""
    instances = sorted(path.name for path in (TRACEFS / "instances").iterdir())
    return [*instances, *(TRACEFS / "dynamic_events").read_text().splitlines()]


def _get(path: str) -> str:
    """The first answer of an agent that may still be starting."""
    answers: list[str] = []

    def answered() -> bool:
        with suppress(OSError), urllib.request.urlopen(ADDRESS + path, timeout=patience(10)) as answer:
            answers.append(answer.read().decode())
        return bool(answers)

    eventually(answered)
    return answers[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
