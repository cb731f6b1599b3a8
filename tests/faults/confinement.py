"""Confinement of container runtimes, applied for good to a test's own child, by ctypes and /proc."""

import ctypes
import errno
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.vm import BUILD

Step = Callable[[], None]

LIBC = ctypes.CDLL(None, use_errno=True)

# include/uapi/linux/prctl.h, sched.h, mount.h, capability.h, fcntl.h
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MOUNT_ATTR_RDONLY, AT_RECURSIVE, AT_FDCWD = 1, 0x8000, -100
SYS_MOUNT_SETATTR = 442
CAPABILITY_VERSION_3 = 0x20080522

# From seccomp.h, and the calls that Docker's default profile refuses without capabilities while podman's
# leaves them to the kernel (moby, profiles/seccomp/default.json; containers/common, pkg/seccomp).
SCMP_ACT_ALLOW, SCMP_ACT_ERRNO = 0x7FFF0000, 0x00050000
DOCKER_REFUSES = (
    "fsconfig fsmount fsopen fspick get_mempolicy keyctl mbind mount mount_setattr move_mount open_tree "
    "pidfd_getfd pivot_root reboot set_mempolicy setns syslog umount2 unshare"
).split()

PROFILE = "kprobe_exporter_test_container"
"""An AppArmor profile with the file rules that containerd, Docker and podman give a container."""


def parser() -> str:
    """The path of AppArmor's parser: this machine's, or the one that the harness has unpacked."""
    return shutil.which("apparmor_parser") or str(BUILD / "apparmor/sbin/apparmor_parser")


def no_capabilities() -> None:
    """Drop all capabilities, such that neither exec nor a file's capabilities can bring them back."""
    only()()


def only(*kept: int) -> Step:
    """Drop all capabilities but these, of which each is below 32, in the same way."""

    def step() -> None:
        for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            if capability not in kept:
                _checked(LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))
        _checked(LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
        mask = sum(1 << capability for capability in kept)
        effective_permitted_inheritable = (mask, mask, 0, 0, 0, 0)
        _checked(LIBC.capset(header, (ctypes.c_uint32 * 6)(*effective_permitted_inheritable)))

    return step


def no_new_privileges() -> None:
    _checked(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def read_only(*writable: Path) -> Step:
    """Make every file system read-only, except those mounted at ``writable``."""

    def step() -> None:
        _own_mounts()
        try:
            _set_attributes(Path("/"), recursive=True, on=MOUNT_ATTR_RDONLY)
        except OSError as error:  # mount_setattr(2) came with Linux 5.12
            if error.errno != errno.ENOSYS:
                raise
            _remount_read_only(writable)
        else:
            for path in writable:
                _set_attributes(path, off=MOUNT_ATTR_RDONLY)

    return step


def _remount_read_only(but: tuple[Path, ...]) -> None:
    """Make each mount read-only, one by one, with the options that it has."""
    flags = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        _, _, _, _, target, options, *_ = line.split()
        kept = sum(flags.get(option, 0) for option in options.split(","))
        if Path(target) not in but:
            flag = MS_REMOUNT | MS_BIND | MS_RDONLY | kept
            try:
                _checked(LIBC.mount(None, os.fsencode(target), None, ctypes.c_ulong(flag), None))
            except OSError as error:  # a mount below a later one cannot be reached
                if error.errno != errno.EINVAL:
                    raise


def mounted_at(source: Path, target: Path) -> Step:
    """Mount ``source`` at ``target`` as well, as a container's bind mount."""

    def step() -> None:
        _own_mounts()
        flags = MS_BIND | MS_REC
        _checked(LIBC.mount(os.fsencode(source), os.fsencode(target), None, flags, None))

    return step


def default_seccomp() -> None:
    """Allow the system calls that Docker allows a container without capabilities; others get EPERM."""
    path = BUILD / "containers/usr/share/containers/seccomp.json"
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(SCMP_ACT_ERRNO | errno.EPERM))
    for name in allowed(json.loads(path.read_text())):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # of this architecture
            assert library.seccomp_rule_add(context, SCMP_ACT_ALLOW, number, 0) == 0
    number = library.seccomp_syscall_resolve_name(b"clone3")  # ENOSYS, so that glibc falls back to clone
    assert library.seccomp_rule_add(context, SCMP_ACT_ERRNO | errno.ENOSYS, number, 0) == 0
    assert library.seccomp_load(context) == 0


def allowed(profile: dict[str, list[dict[str, object]]]) -> set[str]:
    """The calls that a profile allows without any capability; a call allowed for some arguments counts."""
    names: set[str] = set()
    for rule in profile["syscalls"]:
        includes = rule.get("includes") or {}
        assert isinstance(includes, dict)
        architectures = includes.get("arches", ["amd64"])
        if rule["action"] == "SCMP_ACT_ALLOW" and "caps" not in includes and "amd64" in architectures:
            assert isinstance(rule["names"], list)
            names.update(rule["names"])
    return names - {"clone3", *DOCKER_REFUSES}


@contextmanager
def apparmor() -> Iterator[Step]:
    """Load the profile into this kernel; yield the step that puts a process under it."""
    command = [parser(), "--skip-cache", "--config-file=/dev/null", "--base=/nonexistent"]
    subprocess.run([*command, "--replace"], input=RULES, text=True, check=True, capture_output=True)

    def step() -> None:
        Path("/proc/self/attr/apparmor/current").write_text(f"changeprofile {PROFILE}")

    try:
        yield step
    finally:
        subprocess.run([*command, "--remove"], input=RULES, text=True, check=True, capture_output=True)


# What the runtimes' template denies below /sys and /proc: all writes, except to cgroups.
RULES = f"""
profile {PROFILE} flags=(attach_disconnected, mediate_deleted) {{
  network,
  capability,
  file,
  umount,
  signal,
  ptrace (trace, read, tracedby, readby) peer={PROFILE},
  deny mount,
  deny /proc/* w,
  deny /proc/{{[^1-9],[^1-9][^0-9],[^1-9s][^0-9y][^0-9s],[^1-9][^0-9][^0-9][^0-9/]*}}/** w,
  deny /proc/sys/[^k]** w,
  deny /proc/sysrq-trigger rwklx,
  deny /proc/kcore rwklx,
  deny /sys/[^f]*/** wklx,
  deny /sys/f[^s]*/** wklx,
  deny /sys/fs/[^c]*/** wklx,
  deny /sys/fs/c[^g]*/** wklx,
  deny /sys/fs/cg[^r]*/** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/kernel/security/** rwklx,
}}
"""


def confined(main: Callable[[list[str]], object], *steps: Step) -> Callable[[list[str]], object]:
    """A command line that first takes these steps."""

    def run(arguments: list[str]) -> object:
        for step in steps:
            step()
        return main(arguments)

    return run


_HAS_OWN_MOUNTS: set[int] = set()


def _own_mounts() -> None:
    """Give the process a mount namespace, once: its steps share it."""
    if os.getpid() not in _HAS_OWN_MOUNTS:
        _checked(LIBC.unshare(CLONE_NEWNS))
        _checked(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
        _HAS_OWN_MOUNTS.add(os.getpid())


def _set_attributes(path: Path, *, recursive: bool = False, on: int = 0, off: int = 0) -> None:
    """mount_setattr(2). glibc before 2.36 lacks it; its number is the same on all architectures."""
    assert platform.machine() in ("x86_64", "aarch64")
    attributes = (ctypes.c_uint64 * 4)(on, off, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    call = (ctypes.c_long(SYS_MOUNT_SETATTR), ctypes.c_int(AT_FDCWD), os.fsencode(path))
    _checked(LIBC.syscall(*call, ctypes.c_uint(flags), ctypes.byref(attributes), size))


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
