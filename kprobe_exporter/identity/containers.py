"""Which container a cgroup belongs to, by its path alone: the names that runtimes give their cgroups."""

import re
from functools import lru_cache
from typing import NamedTuple

_ID = rb"([0-9a-f]{64})"
_UID = rb"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""A pod's UID, with underscores in the name of a unit; a static pod's is the hash of its manifest."""

_SCOPE = re.compile(rb"(cri-containerd|crio|docker|libpod|nerdctl)-" + _ID + rb"\.scope")
_DIRECTORY = re.compile(rb"(crio|libpod|libpod-payload)-" + _ID)
"""The cgroup name of a container of CRI-O or podman without systemd. ``crio-conmon-…`` and
``libpod-conmon-…`` hold the container's monitor, which runs on the host."""

_POD = re.compile(rb"(?:(?:[\w-]+-)?kubepods(?:-burstable|-besteffort)?-)?pod" + _UID + rb"(?:\.slice)?")
_BARE = re.compile(_ID)
_MIXED = re.compile(rb"(?:[\w-]+-)?kubepods[\w-]*-pod" + _UID + rb"\.slice:cri-containerd:" + _ID)
"""kubelet expects systemd's cgroup driver and containerd does not: one directory has both names."""

_USERS = re.compile(rb"user(?:-\d+)?\.slice|user@\d+\.service")

_DELEGATED = re.compile(
    rb"lxc(?:\.(?:payload|monitor)(?:\..*)?)?"
    rb"|(?!(?:containerd|docker|crio|kubelet|k3s(?:-agent)?|rke2-(?:agent|server))\.service\Z)"
    rb".*\.(?:service|scope)",
    re.DOTALL,
)
"""Cgroups below which others than a runtime may make cgroups: system containers, and the units of systemd
(``Delegate=``), with nspawn's and podman's among them. Root alone makes cgroups in a runtime's own unit."""

RUNTIMES = {
    b"cri-containerd": "containerd",
    b"crio": "cri-o",
    b"docker": "docker",
    b"libpod": "podman",
    b"libpod-payload": "podman",
    b"nerdctl": "nerdctl",
}

OUTSIDE = b".."
"""How /proc writes a path outside the reader's own cgroup namespace (kernfs_path_from_node() of
fs/kernfs/dir.c). No directory can have this name."""

_POD_PARENTS = (b"kubepods", b"burstable", b"besteffort", OUTSIDE)
"""The directory in which kubelet makes ``pod<UID>``; a pod's slice shows by its own name where it is."""


class Container(NamedTuple):
    """A container. ``id`` is 64 hexadecimal digits; ``pod`` is the pod's UID as Kubernetes writes it, None if
    the path names no pod."""

    runtime: str
    id: str
    pod: str | None


@lru_cache(maxsize=1024)
def container(path: bytes, *, nested: bool = False) -> Container | None:
    """Return the container whose processes are in the cgroup of this path; None on the host.

    It is the outermost container that the path names. Cgroups that a container makes inside itself
    (``init.scope``, ``container``) still belong to it: it may be allowed to make cgroups, and could name them
    after another container's or pod's. Names below other cgroups in which others than a runtime may make
    cgroups are ignored: below a user's slice, where a rootless container counts as none, and _DELEGATED.

    If ``nested``, it is the innermost container, such as one in a node of kind. Then delegated trees are
    trusted, except for a user's slice and the containers of a pod.
    """
    found: Container | None = None
    pod: str | None = None
    before = b""
    for name in path.split(b"/"):
        if _USERS.fullmatch(name):
            break
        if mixed := _MIXED.fullmatch(name):
            return Container("containerd", mixed[2].decode(), _uid(mixed[1]))
        if own := _SCOPE.fullmatch(name) or _DIRECTORY.fullmatch(name):
            found = Container(RUNTIMES[own[1]], own[2].decode(), pod)
        elif _BARE.fullmatch(name) and (pod is not None or before in (b"docker", OUTSIDE)):
            found = Container("docker" if before == b"docker" else "containerd", name.decode(), pod)
        elif (unit := _POD.fullmatch(name)) and (not name.startswith(b"pod") or before in _POD_PARENTS):
            pod = _uid(unit[1])
        elif not nested and _DELEGATED.fullmatch(name):
            break
        if found is not None and (not nested or (pod is not None and found.pod == pod)):
            return found
        before = name
    return found


def _uid(written: bytes) -> str:
    return written.decode().replace("_", "-")
