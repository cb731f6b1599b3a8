"""The machines that guests boot on, as data: their processors and memory, and options of their kernel."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One machine, for the tests in tests/kernel/test_machines.py."""

    name: str
    cpus: str = "2"  # as QEMU's -smp; more than one by default, since tracing is per CPU
    memory: str = "2G"
    options: tuple[str, ...] = ()  # of the kernel's command line
    left_out: tuple[str, ...] = ()  # tests that need more
    on_request: bool = False  # `make test` does not boot it


HOTPLUG = "tests/kernel/test_machines.py::test_hotplug_during_load"
SETTINGS = "tests/kernel/test_machines.py::test_setting"

USUAL = Machine("usual")

MACHINES = {
    machine.name: machine
    for machine in (
        # CPUs that were never online: two are present, one of them is on, and two more could be plugged in.
        Machine("few", cpus="2,maxcpus=4", options=("maxcpus=1", "nosmt")),
        Machine(
            "single",
            cpus="1",
            memory="768M",
            options=("lockdown=integrity",),
            left_out=(HOTPLUG,),
            on_request=True,
        ),
        # One thread emulates all CPUs: the boot takes minutes, and hotplug was refused with EBUSY.
        Machine(
            "many",
            cpus="64",
            options=("isolcpus=1-3,8",),
            left_out=(SETTINGS, HOTPLUG),
            on_request=True,
        ),
    )
}
