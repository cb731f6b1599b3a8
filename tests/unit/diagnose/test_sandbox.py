"""sandbox: what a container lacks is found from /proc and /sys alone, each time with a fix."""

import os
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.diagnose.sandbox import confinement_checks
from kprobe_exporter.tracefs.features import Check

HOST = {
    "proc/self/ns/pid": "pid:[4026531836]",
    "proc/self/ns/cgroup": "cgroup:[4026531835]",
    "proc/self/ns/user": "user:[4026531837]",
    "proc/self/ns/net": "net:[4026531840]",
    "proc/1/ns/net": "net:[4026531840]",
}
FILES = {
    "proc/self/status": "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n",
    "proc/self/uid_map": "         0          0 4294967295\n",
    "var/log/pods/default_web-1_0000/x": "",
    "var/log/containers/web-1_default_web-0.log": "",
}
TRACING = Path("/sys/kernel/tracing")
DOCKER = "docker-default (enforce)\n"
CONTAINER = "system_u:system_r:container_t:s0:c1,c2\0"


def look(
    root: Path,
    links: dict[str, str] | None = None,
    files: dict[str, str] | None = None,
    tracefs: Path = TRACING,
    environment: dict[str, str] | None = None,
) -> dict[str, Check]:
    """Return the checks of a machine that is the host, except for these arguments."""
    for name, target in (HOST | (links or {})).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if target:
            (root / name).symlink_to(target)
    for name, text in (FILES | (files or {})).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    checks = confinement_checks(root, tracefs, environment or {})
    found = {check.name: check for check in checks}
    assert len(found) == len(checks)
    assert all((check.fix is None) == (check.state == "ok") for check in checks)
    assert all((check.fix or ".").endswith(".") for check in checks)
    assert not any(check.required for check in checks)
    return found


def test_the_host(tmp_path: Path) -> None:
    checks = look(tmp_path)
    assert {check.state for check in checks.values()} == {"ok"}
    assert checks["pid_namespace"].evidence == "/proc/self/ns/pid is pid:[4026531836], the host's"
    assert checks["cap_syslog"].evidence == "CapEff 000001ffffffffff has CAP_SYSLOG"
    assert checks["pod_names"].evidence.endswith("1 in /var/log/pods, 1 in /var/log/containers")


@pytest.mark.parametrize(
    ("name", "links", "fix"),
    [
        ("pid_namespace", {"proc/self/ns/pid": "pid:[4026532000]"}, "hostPID: true"),
        ("cgroup_namespace", {"proc/self/ns/cgroup": "cgroup:[4026532000]"}, "--cgroupns=host"),
        ("net_namespace", {"proc/self/ns/net": "net:[4026532000]"}, "hostNetwork: true"),
    ],
)
def test_another_namespace(tmp_path: Path, name: str, links: dict[str, str], fix: str) -> None:
    check = look(tmp_path, links)[name]
    assert check.state == "warn"
    assert "4026532000" in check.evidence
    assert fix in (check.fix or "")


def test_host_proc_in_another_pid_namespace(tmp_path: Path) -> None:
    """Wherever it is mounted, it is used, also to compare the network."""
    host = tmp_path / "host"
    links = {"proc/self/ns/pid": "pid:[4026532000]", "host/1/ns/net": HOST["proc/1/ns/net"]}
    files = {
        "proc/self/mountinfo": f"31 1 0:21 / {host} ro - proc proc rw\n",
        "host/2/stat": "2 (kthreadd) S 0 0 0 0 -1 2129984 0\n",
    }
    checks = look(tmp_path, links, files)
    seen = f"/proc/self/ns/pid is pid:[4026532000], not the host's; the host's /proc is at {host}"
    assert (checks["pid_namespace"].state, checks["pid_namespace"].evidence) == ("ok", seen)
    assert checks["net_namespace"].state == "ok"


@pytest.mark.parametrize(
    ("uid_map", "state", "outside"),
    [
        ("0 1000 1\n", "warn", "1000"),
        ("1 1 1\n0 100000 65536\n", "warn", "100000"),
        ("0 0 1\n", "ok", "0"),
        ("", "warn", "unmapped"),
        ("nonsense\n", "warn", "unmapped"),
    ],
)
def test_another_user_namespace(tmp_path: Path, uid_map: str, state: str, outside: str) -> None:
    """uid 0 of the namespace may be the host's uid 0, and then tracefs belongs to it."""
    check = look(tmp_path, {"proc/self/ns/user": "user:[4026532000]"}, {"proc/self/uid_map": uid_map})[
        "user_namespace"
    ]
    assert (check.state, f"uid 0 is uid {outside} outside" in check.evidence) == (state, True)


@pytest.mark.parametrize("links", [{"proc/1/ns/net": ""}, {"proc/self/ns/pid": "pid:[4026532000]"}])
def test_a_network_that_nothing_can_be_compared_with(tmp_path: Path, links: dict[str, str]) -> None:
    assert look(tmp_path, links)["net_namespace"].state == "unknown"


def test_a_link_that_must_not_be_read_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Linux 5.10, without CAP_SYS_PTRACE."""
    read = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: "" if "/1/" in str(path) else read(path))
    assert look(tmp_path, {})["net_namespace"].state == "unknown"


def test_without_proc(tmp_path: Path) -> None:
    checks = {check.name: check.state for check in confinement_checks(tmp_path, TRACING, {})}
    assert checks == {
        **dict.fromkeys(("pid_namespace", "cgroup_namespace", "user_namespace", "net_namespace"), "unknown"),
        **dict.fromkeys(("cap_syslog", "cap_sys_ptrace", "pod_names"), "unknown"),
        **dict.fromkeys(("apparmor", "selinux"), "ok"),
    }


@pytest.mark.parametrize(
    ("effective", "syslog", "ptrace"),
    [
        ("0000000000000000", "warn", "warn"),
        ("0000000400000000", "ok", "warn"),
        ("0000000000080000", "warn", "ok"),
        ("00000000a80425fb", "warn", "warn"),
    ],
)
def test_capabilities(tmp_path: Path, effective: str, syslog: str, ptrace: str) -> None:
    """The last row has the capabilities that Docker gives."""
    checks = look(tmp_path, files={"proc/self/status": f"Name:\tCapEff:\nCapEff:\t{effective}\n"})
    assert (checks["cap_syslog"].state, checks["cap_sys_ptrace"].state) == (syslog, ptrace)


@pytest.mark.parametrize(
    ("files", "tracefs", "state", "said"),
    [
        ({"proc/self/attr/apparmor/current": "unconfined\n"}, TRACING, "ok", "'unconfined'"),
        ({"proc/self/attr/apparmor/current": "x (complain)\n"}, TRACING, "ok", "'x (complain)'"),
        ({"proc/self/attr/apparmor/current": DOCKER}, TRACING, "warn", "'docker-default (enforce)'"),
        ({"proc/self/attr/apparmor/current": DOCKER}, Path("/tracefs"), "ok", "not below /sys"),
        ({"proc/self/attr/apparmor/current": DOCKER}, Path("/sysx"), "ok", "not below /sys"),
        (
            {"proc/self/attr/current": DOCKER, "sys/module/apparmor/parameters/enabled": "Y\n"},
            TRACING,
            "warn",
            "'docker-default (enforce)'",
        ),
        (
            {"proc/self/attr/current": DOCKER, "sys/module/apparmor/parameters/enabled": "N\n"},
            TRACING,
            "ok",
            "does not confine",
        ),
    ],
)
def test_apparmor(tmp_path: Path, files: dict[str, str], tracefs: Path, state: str, said: str) -> None:
    checks = look(tmp_path, files=files, tracefs=tracefs)
    assert (checks["apparmor"].state, said in checks["apparmor"].evidence) == (state, True)
    assert checks["selinux"].state == "ok"
    if state == "warn":
        assert "--tracefs /tracefs" in (checks["apparmor"].fix or "")


@pytest.mark.parametrize(
    ("context", "enforce", "state"),
    [
        (CONTAINER, None, "warn"),
        (CONTAINER, "1", "warn"),
        (CONTAINER, "0", "ok"),
        ("system_u:system_r:container_init_t:s0:c1,c2", "1", "warn"),
        ("system_u:system_r:svirt_lxc_net_t:s0", "1", "warn"),
        ("system_u:system_r:container_runtime_t:s0", "1", "ok"),
        ("system_u:system_r:spc_t:s0", "1", "ok"),
        ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\n", "1", "ok"),
        ("kernel", "1", "ok"),
        ("", None, "ok"),
    ],
)
def test_selinux(tmp_path: Path, context: str, enforce: str | None, state: str) -> None:
    files = {"proc/self/attr/current": context}
    if enforce:
        files["sys/fs/selinux/enforce"] = enforce
    check = look(tmp_path, files=files)["selinux"]
    assert check.state == state
    assert ("spc_t" in (check.fix or "")) == (state == "warn")


@pytest.mark.parametrize(
    ("environment", "state"), [({}, "unknown"), ({"KUBERNETES_SERVICE_HOST": "x"}, "warn")]
)
def test_logs_of_pods_that_are_not_there(tmp_path: Path, environment: dict[str, Any], state: str) -> None:
    (tmp_path / "var/log/pods").mkdir(parents=True)
    checks = {check.name: check for check in confinement_checks(tmp_path, TRACING, environment)}
    assert checks["pod_names"].state == state
    assert checks["pod_names"].evidence == "there is no /var/log/containers that can be read"
    assert "mount the host's /var/log/pods and /var/log/containers" in (checks["pod_names"].fix or "")
