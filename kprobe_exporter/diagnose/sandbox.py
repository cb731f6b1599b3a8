"""How a container restricts this process: namespaces, capabilities, security modules, directories."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from kprobe_exporter.identity.cgroups import INITIAL_CGROUPS
from kprobe_exporter.identity.procfs import HOST_IDS, INITIAL, host_proc
from kprobe_exporter.tracefs.features import Check

INITIAL_USERS = "user:[4026531837]"
"""The initial user namespace (PROC_USER_INIT_INO, include/linux/proc_ns.h)."""


CAPABILITIES = (
    (
        "cap_syslog",
        34,
        "Add the capability SYSLOG; until then addresses are named by lists of tracefs (Linux 6.5), "
        "which lack data and untraceable functions. A name that several functions have stays ambiguous.",
    ),
    (
        "cap_sys_ptrace",
        19,
        "Add the capability SYS_PTRACE; until then no function in the files of another container "
        "(/proc/PID/root/…) can be probed.",
    ),
)
"""Capabilities, their bits in include/uapi/linux/capability.h, and the advice if one is missing."""

CONTAINERS_TYPE = re.compile(r"container_(?!runtime_t)\w+|svirt_lxc_net_t")
"""SELinux's types of confined containers; spc_t is the type of an unconfined one (container-selinux)."""

LOGS = ("pods", "containers")
"""Directories below /var/log, in which names tell to which pod a container belongs."""


def confinement_checks(root: Path, tracefs: Path, environment: Mapping[str, str]) -> list[Check]:
    """Check what is visible of them; nothing is tried. ``root`` is ``/``, or a directory that a test uses.

    ``tracefs`` is where tracefs is or would be mounted, ``environment`` is this process's environment.
    """
    return [
        _processes(root),
        _namespace(
            root,
            "cgroup_namespace",
            INITIAL_CGROUPS,
            "Give the host's: docker run --cgroupns=host, a privileged pod; until then the label 'cgroup' "
            "begins with '/..', and what runs in the agent's own container is not told by /proc.",
        ),
        _users(root),
        _network(root),
        *(_capability(root, *capability) for capability in CAPABILITIES),
        _apparmor(root, tracefs),
        _selinux(root),
        _pods(root, "KUBERNETES_SERVICE_HOST" in environment),
    ]


def _namespace(root: Path, name: str, initial: str, fix: str) -> Check:
    path = f"proc/self/ns/{initial.partition(':')[0]}"
    link = _link(root / path)
    if link is None:
        return Check(name, "unknown", f"/{path} cannot be read", "Mount the host's /proc.")
    return _judged(
        name, link == initial, f"/{path} is {link}, {'' if link == initial else 'not '}the host's", fix
    )


def _processes(root: Path) -> Check:
    """Check the PID namespace, and whether the host's /proc is mounted in another one."""
    fix = (
        f"{HOST_IDS}; until then cgroups, containers and functions in programs are unknown for most threads, "
        "and containers outside of this namespace are not found."
    )
    found = _namespace(root, "pid_namespace", INITIAL, fix)
    host = host_proc(root / "proc")
    if found.state != "warn" or host is None:
        return found
    return Check(found.name, "ok", f"{found.evidence}; the host's /proc is at {host}")


def _judged(name: str, fine: bool, seen: str, fix: str) -> Check:
    return Check(name, "ok", seen) if fine else Check(name, "warn", seen, fix)


def _users(root: Path) -> Check:
    """Check ``/proc/self/uid_map``, with lines of id inside, id outside, count (user_namespaces(7))."""
    link = _link(root / "proc/self/ns/user")
    if link in (None, INITIAL_USERS):
        return _namespace(root, "user_namespace", INITIAL_USERS, "")
    lines = [line.split() for line in (_text(root / "proc/self/uid_map") or "").split("\n")]
    outside = next((line[1] for line in lines if len(line) == 3 and line[0] == "0"), "unmapped")
    seen = f"/proc/self/ns/user is {link}, not the host's, and uid 0 is uid {outside} outside"
    fix = "Run in the host's: hostUsers: true, docker run --userns=host; tracefs belongs to the host's uid 0."
    return _judged("user_namespace", outside == "0", seen, fix)


def _network(root: Path) -> Check:
    """Compare with the host's first process, because the initial network namespace has no fixed number."""
    host = host_proc(root / "proc")
    own, first = _link(root / "proc/self/ns/net"), _link(host / "1/ns/net") if host else None
    if own is None or first is None:
        seen = "/proc/1/ns/net cannot be compared with /proc/self/ns/net"
        fix = (
            "Give the agent hostPID, or the host's /proc, and CAP_SYS_PTRACE; without, 'ifname' shows its "
            "own interfaces."
        )
        return Check("net_namespace", "unknown", seen, fix)
    if own == first:
        return Check("net_namespace", "ok", f"/proc/self/ns/net is {own}, the first process's")
    return Check(
        "net_namespace",
        "warn",
        f"/proc/self/ns/net is {own}, the first process's is {first}",
        "Give the host's: hostNetwork: true, docker run --network=host; until then 'ifname' takes the host's "
        "interfaces for those of this container.",
    )


def _capability(root: Path, name: str, bit: int, fix: str) -> Check:
    try:
        status = (root / "proc/self/status").read_text(errors="replace")
    except OSError as error:
        seen = f"/proc/self/status cannot be read: {error.strerror}"
        return Check(name, "unknown", seen, "Mount /proc.")
    found = re.search(r"^CapEff:\t([0-9a-f]{1,16})$", status, re.MULTILINE)
    effective = found[1] if found else "0"
    has = bool(int(effective, 16) >> bit & 1)
    return _judged(name, has, f"CapEff {effective} {'has' if has else 'lacks'} {name.upper()}", fix)


def _apparmor(root: Path, tracefs: Path) -> Check:
    """Check AppArmor: profiles of containerd and moby deny writes by path: ``deny /sys/[^f]*/** wklx``."""
    profile = _profile(root)
    if profile is None:
        return Check("apparmor", "ok", "AppArmor does not confine this process")
    if not profile.endswith("(enforce)"):
        return Check("apparmor", "ok", f"AppArmor's profile of this process is '{profile}'")
    seen = f"AppArmor confines this process by '{profile}', tracefs is at {tracefs}"
    if not tracefs.is_relative_to("/sys"):
        return Check("apparmor", "ok", f"{seen}, not below /sys")
    return Check(
        "apparmor",
        "warn",
        f"{seen}: profiles of container runtimes deny to write below /sys",
        "Mount the host's /sys/kernel/tracing at /tracefs and give --tracefs /tracefs, or run unconfined "
        "(appArmorProfile: {type: Unconfined}, docker run --security-opt apparmor=unconfined).",
    )


def _profile(root: Path) -> str | None:
    """Return AppArmor's profile of this process, with its mode in brackets; None without AppArmor."""
    profile = _text(root / "proc/self/attr/apparmor/current")
    if profile is None and (_text(root / "sys/module/apparmor/parameters/enabled") or "").startswith("Y"):
        profile = _text(root / "proc/self/attr/current")
    return profile or None


def _selinux(root: Path) -> Check:
    """Check SELinux's context ``user:role:type:level``; in a container, /sys/fs/selinux is hidden."""
    context = _text(root / "proc/self/attr/current") or ""
    parts = context.split(":")
    if len(parts) < 3 or context == _profile(root):
        return Check("selinux", "ok", "SELinux does not confine this process")
    if _text(root / "sys/fs/selinux/enforce") == "0":
        return Check("selinux", "ok", f"SELinux is permissive, this process is '{context}'")
    if not CONTAINERS_TYPE.fullmatch(parts[2]):
        return Check("selinux", "ok", f"this process is '{context}', which is not a confined container")
    return Check(
        "selinux",
        "warn",
        f"this process is '{context}': SELinux lets no such container write to tracefs",
        "Run as spc_t: seLinuxOptions: {type: spc_t}, docker run --security-opt label=type:spc_t.",
    )


def _pods(root: Path, in_kubernetes: bool) -> Check:
    """Check the directories in which kubelet writes logs on a node; only names are read."""
    counts = {name: _count(root / "var/log" / name) for name in LOGS}
    missing = [f"/var/log/{name}" for name, count in counts.items() if count is None]
    if not missing:
        seen = ", ".join(f"{count} in /var/log/{name}" for name, count in counts.items())
        return Check("pod_names", "ok", f"names of pods can be seen: {seen}")
    fix = "On a node of Kubernetes mount the host's /var/log/pods and /var/log/containers, read-only"
    return Check(
        "pod_names",
        "warn" if in_kubernetes else "unknown",
        f"there is no {' and no '.join(missing)} that can be read",
        f"{fix}; until then 'pod' and 'namespace' are unknown." if in_kubernetes else f"{fix}.",
    )


def _count(directory: Path) -> int | None:
    try:
        return len(os.listdir(directory))
    except OSError:
        return None


def _link(path: Path) -> str | None:
    """Return where a link leads. Linux 5.10 gives nothing, and no error, where it must not be read."""
    try:
        found = str(path.readlink())
    except OSError:
        return None
    return None if found == "." else found  # pathlib's word for an empty path


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode(errors="backslashreplace").strip("\0\n ")
    except OSError:
        return None
