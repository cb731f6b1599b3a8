"""What /proc shows of threads and mounts, and the names of cgroups, containers and pods."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from kprobe_exporter.diagnose.sandbox import confinement_checks
from kprobe_exporter.identity.containers import OUTSIDE, container
from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.labels import user
from kprobe_exporter.tracefs.features import kernel_checks
from kprobe_exporter.tracefs.mount import find
from tests.fuzz.reader import Reader
from tests.support.cgroup_tree import Machine as CgroupMachine
from tests.support.container_paths import UID, UNIT, A, B
from tests.support.proc_threads import Machine as ThreadMachine

TID = 7
CGROUP = (
    b"0::/kubepods.slice/kubepods-pod%s.slice/cri-containerd-%s.scope\n" % (UNIT.encode(), A.encode()),
    b"12:memory:/docker/%s\n3:cpu,cpuacct:/user.slice\n1:name=systemd:/init.scope\n0::/\n" % A.encode(),
    b"0::/%s/x\n" % OUTSIDE,
)
STAT = b"7 (a) b) S 1 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 1234 0 0\n"
STATUS = (
    b"Name:\tx\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t7\nNgid:\t0\nPid:\t7\nCapEff:\t000001ffffffffff\n"
)
MOUNTINFO = (
    b"22 27 0:20 / /proc rw,nosuid shared:12 - proc proc rw\n"
    b"35 24 0:12 / /sys/kernel/tracing rw,nosuid - tracefs nodev rw\n"
    b"36 24 0:12 /instances/x /a\\040b ro shared:7 master:2 - tracefs nodev ro,mode=755\n"
)
PATHS = (
    *(f"/kubepods/burstable/pod{UID}/{A}", f"/docker/{A}/kubelet/kubepods/burstable/pod{UID}/{B}"),
    f"/../{A}",
    *(f"/kubepods.slice/kubepods-pod{UNIT}.slice/crio-{A}.scope/container", "/user.slice/user-0.slice/x"),
    *(f"/machine.slice/libpod-{A}.scope", f"/x/kubepods-pod{UNIT}.slice:cri-containerd:{A}"),
)
NAMES = (
    *(f"default_web-0_{UID}", f"web-0_default_nginx-{A}.log", f"kube-system_etcd-node.example_{B[:32]}"),
    *(f"etcd-node.example_kube-system_etcd-{B}.log",),
)
LONGEST_NAME = 255
UIDS = (0, 1000, (1 << 32) - 2)
CONFINED = (
    *(b"docker-default (enforce)\n", b"system_u:system_r:container_t:s0:c1,c2\0"),
    *(b"         0          0 4294967295\n", b"none [integrity] confidentiality\n", b"1\n"),
)
CONFINEMENT_FILES = (
    *("proc/self/status", "proc/self/uid_map", "proc/self/attr/current", "proc/self/attr/apparmor/current"),
    *("sys/kernel/security/lockdown", "proc/sys/kernel/ftrace_enabled", "sys/kernel/debug/kprobes/enabled"),
    *("sys/module/apparmor/parameters/enabled", "sys/fs/selinux/enforce"),
)


@cache
def _machine(directory: Path) -> CgroupMachine:
    machine = CgroupMachine(directory / "proc-of-cgroups")
    machine.lives(TID, "/x")
    return machine


def _thread(name: str) -> Callable[[bytes, Path], bool]:
    """Find a thread's cgroup, with these bytes in one of the thread's files."""

    def read(data: bytes, directory: Path) -> bool:
        machine = _machine(directory)
        file = machine.proc / str(TID) / name
        before = file.read_bytes()
        file.write_bytes(data)
        try:
            known = machine.cgroups()
            known.scan()
            path = known.path(TID, machine.now)
        finally:
            file.write_bytes(before)
        if path:
            container(path)
        return path is not None

    return read


def _own_cgroup(data: bytes, directory: Path) -> bool:
    machine = _machine(directory)
    (machine.proc / "self/cgroup").write_bytes(data)
    return bool(machine.cgroups()._hierarchies)


@cache
def _others(directory: Path) -> ThreadMachine:
    machine = ThreadMachine(directory / "proc-of-threads")
    machine.born(TID, TID, b"x")
    return machine


def _name(file: str) -> Callable[[bytes, Path], bool]:
    def read(data: bytes, directory: Path) -> bool:
        machine = _others(directory)
        machine.now += 60
        (machine.proc / str(TID) / file).write_bytes(data)
        return None not in (machine.threads.comm(TID), machine.threads.tgid(TID))

    return read


def _mounts(data: bytes, _: Path) -> bool:
    return find(data.decode(errors="surrogateescape")) is not None


def _pods(data: bytes, directory: Path) -> bool:
    """Find pods by file names, one a line, in both of the kubelet's directories."""
    made = []
    for folder in ("pods", "containers"):
        (directory / folder).mkdir(exist_ok=True)
        for line in data.replace(b"\0", b"").replace(b"/", b"").split(b"\n")[:5]:
            name = line[:LONGEST_NAME]
            if name not in (b"", b".", b".."):
                made.append(directory / folder / name.decode(errors="surrogateescape"))
                made[-1].touch()
    try:
        pods = Pods(directory)
        found = [pods.find(one, uid) for one in (A, B) for uid in (UID, None)]
    finally:
        for file in made:
            file.unlink(missing_ok=True)
    return any(found)


def _confinement(data: bytes, directory: Path) -> bool:
    root = directory / "root"
    for name in CONFINEMENT_FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    checks = [*confinement_checks(root, Path("/sys/kernel/tracing"), {}), *kernel_checks(root)]
    return any(check.state == "ok" for check in checks)


def _users(data: bytes, directory: Path) -> bool:
    (directory / "passwd").write_bytes(data)
    decode = user.decoder(None, directory / "passwd")
    texts = [decode(uid) for uid in UIDS]
    return texts != [str(uid) for uid in UIDS]


READERS: Mapping[str, Reader] = {
    "cgroup": Reader(lambda: CGROUP, _thread("cgroup"), words=(b"0::/", b":/..", b"999:x:/y\n")),
    "own_cgroup": Reader(lambda: CGROUP, _own_cgroup),
    "stat": Reader(lambda: [STAT], _thread("stat"), words=(b")", b") S ")),
    "status": Reader(lambda: [STATUS], _thread("status"), words=(b"Tgid:\t", b"\nTgid:\t8\n")),
    "comm": Reader(lambda: [b"bash\n", b"kworker/0:1-events\n", b"kworker/R-x\n"], _name("comm")),
    "tgid": Reader(lambda: [STATUS], _name("status"), words=(b"Tgid:\t", b"\nTgid:\t8\n")),
    "mountinfo": Reader(lambda: [MOUNTINFO], _mounts, words=(b" - tracefs ", b"\\777", b"\\000")),
    "cgroup_path": Reader(lambda: [path.encode() for path in PATHS], lambda data, _: container(data)),
    "pod_names": Reader(lambda: [name.encode() for name in NAMES], _pods, words=(b"_", b".log", b"-", b".")),
    "confinement": Reader(lambda: [*CONFINED, STATUS], _confinement),
    "passwd": Reader(lambda: [b"root:x:0:0:root:/root:/bin/sh\nme:x:1000:1000::/:\n"], _users),
}
