"""Cgroup paths as the container runtimes make them, and paths that only look like them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.identity.containers import Container, container
from tests.support.container_paths import UID, UNIT, A, B

HASH = "6a0b8c5ddf6d9a0cbd8ef4d9d0b3a1c2"
SLICE = "/kubepods.slice/kubepods-burstable.slice"
KIND = f"/docker/{B}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice"


@pytest.mark.parametrize(
    ("path", "runtime", "pod"),
    [
        (f"/kubepods/burstable/pod{UID}/{A}", "containerd", UID),
        (f"/kubepods/besteffort/pod{UID}/{A}", "containerd", UID),
        (f"/kubepods/pod{UID}/{A}", "containerd", UID),
        (f"/kubepods/burstable/pod{HASH}/{A}", "containerd", HASH),
        (f"{SLICE}/kubepods-burstable-pod{UNIT}.slice/cri-containerd-{A}.scope", "containerd", UID),
        (f"/kubepods.slice/kubepods-pod{HASH}.slice/cri-containerd-{A}.scope", "containerd", HASH),
        (f"{SLICE}/kubepods-burstable-pod{UNIT}.slice/crio-{A}.scope", "cri-o", UID),
        (f"{SLICE}/kubepods-burstable-pod{UNIT}.slice/crio-{A}.scope/container", "cri-o", UID),
        (f"/kubepods/burstable/pod{UID}/crio-{A}", "cri-o", UID),
        (f"{SLICE}/kubepods-burstable-pod{UNIT}.slice/docker-{A}.scope", "docker", UID),
        (f"/system.slice/containerd.service/kubepods-pod{UNIT}.slice:cri-containerd:{A}", "containerd", UID),
        (f"/docker/{A}", "docker", None),
        (f"/docker/{A}/init.scope", "docker", None),
        (f"/docker/{A}/system.slice/sshd.service", "docker", None),
        (f"/docker/{A}/user.slice/user-0.slice/docker-{B}.scope", "docker", None),
        (f"/docker-{A}.scope", "docker", None),
        (f"/system.slice/docker-{A}.scope", "docker", None),
        (f"/machine.slice/libpod-{A}.scope", "podman", None),
        (f"/machine.slice/libpod-{A}.scope/container", "podman", None),
        (f"/machine.slice/machine-libpod_pod_{B}.slice/libpod-{A}.scope", "podman", None),
        (f"/libpod_parent/libpod-{A}", "podman", None),
        (f"/system.slice/nerdctl-{A}.scope", "nerdctl", None),
        (f"/docker/{A}/kubelet/kubepods/burstable/pod{UID}", "docker", None),
        (f"/docker/{A}/system.slice/crio-conmon-{B}.scope", "docker", None),
        # Cgroups that a pod's container makes inside itself, under any name.
        (f"/kubepods/burstable/pod{UID}/{A}/docker/{B}", "containerd", UID),
        (f"/kubepods/burstable/pod{UID}/{A}/kubepods/pod{HASH}/{B}", "containerd", UID),
        # Seen from the agent's own cgroup namespace.
        (f"/../cri-containerd-{A}.scope", "containerd", None),
        (f"/../{A}", "containerd", None),
        (f"/../../pod{UID}/{A}", "containerd", UID),
        (f"/../../kubepods-burstable-pod{UNIT}.slice/crio-{A}.scope", "cri-o", UID),
        (f"/../../../burstable/pod{UID}/{A}", "containerd", UID),
    ],
)
def test_runtimes(path: str, runtime: str, pod: str | None) -> None:
    assert container(path.encode()) == Container(runtime, A, pod)


@pytest.mark.parametrize(
    ("path", "runtime", "pod"),
    [
        # Nodes that are containers themselves (kind), with either cgroup driver.
        (f"/docker/{B}/kubelet/kubepods/burstable/pod{UID}/{A}", "containerd", UID),
        (f"/docker/{B}/kubepods/burstable/pod{UID}/{A}", "containerd", UID),
        (f"{KIND}/kubelet-kubepods-besteffort-pod{UNIT}.slice/cri-containerd-{A}.scope", "containerd", UID),
        (f"/docker/{B}/docker/{A}", "docker", None),
        (f"/machine.slice/libpod-{B}.scope/container/docker-{A}.scope", "docker", None),
    ],
)
def test_a_container_in_a_container(path: str, runtime: str, pod: str | None) -> None:
    """The outer one counts, unless the configuration asks for the inner one."""
    outer = container(path.encode())
    assert (outer and (outer.id, outer.pod)) == (B, None)
    assert container(path.encode(), nested=True) == Container(runtime, A, pod)


DELEGATED = (
    *("/lxc.payload.web", "/lxc/web", "/lxc.monitor.web"),
    *("/machine.slice/systemd-nspawn@web.service/payload", "/machine.slice/machine-web.scope"),
    *("/system.slice/jobs.service", "/system.slice/run-r1.scope", "/../jobs.service"),
    *("/system.slice/jobs.service/containerd.service", "/system.slice/containerd.service.scope"),
)
INSIDE = (
    f"docker-{A}.scope",
    f"docker/{A}",
    f"libpod-payload-{A}",
    f"kubepods/burstable/pod{UID}/{A}",
    f"kubepods.slice/kubepods-pod{UNIT}.slice/cri-containerd-{A}.scope",
    f"kubepods-pod{UNIT}.slice:cri-containerd:{A}",
)


@pytest.mark.parametrize("outside", DELEGATED)
@pytest.mark.parametrize("inside", INSIDE)
def test_below_what_is_delegated_no_name_counts(outside: str, inside: str) -> None:
    """Who may make cgroups there could name one after any container or pod."""
    path = f"{outside}/{inside}".encode()
    assert container(path) is None
    found = container(path, nested=True)
    assert found is not None
    assert found.id == A


@pytest.mark.parametrize(
    "own",
    [
        f"/docker/{A}",
        f"/system.slice/docker-{A}.scope",
        f"/machine.slice/libpod-{A}.scope/container",
        f"/libpod_parent/libpod-{A}",
        f"/system.slice/nerdctl-{A}.scope",
        f"/../crio-{A}.scope",
    ],
)
@pytest.mark.parametrize("inside", [name.replace(A, B) for name in INSIDE])
def test_no_container_takes_the_name_of_another(own: str, inside: str) -> None:
    found = container(f"{own}/{inside}".encode())
    assert found is not None
    assert (found.id, found.pod) == (A, None)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/init.scope", "/system.slice/docker.service", "/kubepods.slice"),
        f"/kubepods/burstable/pod{UID}",
        f"{SLICE}/kubepods-burstable-pod{UNIT}.slice/crio-conmon-{A}.scope",
        f"/machine.slice/libpod-conmon-{A}.scope",
        *(f"/docker/{A[:63]}", f"/docker/{A}0", f"/docker/{A.upper()}", f"/docker-{A}"),
        *(f"/docker-{A}.scope.d", f"/docker-{A}.scope\n", f"/mydocker-{A}.scope"),
        *(f"/{A}", f"/system.slice/{A}", f"/pod{UID}/{A}", f"/system.slice/pod{UID}/{A}"),
        f"/kubepods/burstable/pod{UID[:-1]}/{A}",
        f"/kubepods/burstable/pod{UID}x/{A}",
        # Users can create any cgroup below their own slice.
        f"/user.slice/user-1000.slice/user@1000.service/app.slice/docker-{A}.scope",
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{A}.scope/container",
        f"/user.slice/user-1000.slice/session-1.scope/kubepods/burstable/pod{UID}/{A}",
        f"/../../user-1000.slice/user@1000.service/docker/{A}",
        f"/../user@1000.service/docker/{A}",
    ],
)
def test_no_container(path: str) -> None:
    assert container(path.encode()) is None


words = st.sampled_from(
    [
        *(b"kubepods", b"burstable", b"kubepods.slice", b"docker", b"..", b"user.slice", b"container"),
        b"pod" + UID.encode(),
        b"kubepods-pod" + UNIT.encode() + b".slice",
        *(A.encode(), B.encode()),
        b"crio-" + A.encode() + b".scope",
        b"crio-conmon-" + A.encode() + b".scope",
        b"docker-" + B.encode() + b".scope",
        b"libpod-" + B.encode(),
    ]
)


@given(st.lists(words | st.binary(max_size=20), max_size=12))
def test_whatever_the_path_the_ids_are_of_it_and_whole(names: list[bytes]) -> None:
    path = b"/" + b"/".join(names)
    found = container(path)
    if found is not None:
        assert found.id in (A, B)
        assert found.id.encode() in path.partition(b"/user.slice")[0]
        assert found.pod in (None, UID)


@given(
    st.lists(words | st.binary(max_size=20), max_size=8),
    st.sampled_from([b"user.slice", b"user-7.slice"]),
    st.booleans(),
)
def test_below_a_users_slice_nothing_counts(names: list[bytes], users: bytes, nested: bool) -> None:
    assert container(b"/" + b"/".join([users, *names]), nested=nested) is None


@given(st.lists(words, max_size=8), st.booleans())
def test_nothing_that_a_pods_container_makes_gives_it_another_name(names: list[bytes], nested: bool) -> None:
    own = f"{SLICE}/kubepods-burstable-pod{UNIT}.slice/cri-containerd-{A}.scope".encode()
    assert container(b"/".join([own, *names]), nested=nested) == Container("containerd", A, UID)
