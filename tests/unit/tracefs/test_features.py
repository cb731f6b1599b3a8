"""tracefs.features: each check shows its evidence, and leaves nothing behind."""

import errno
from pathlib import Path

import pytest

from kprobe_exporter.tracefs.features import (
    KINDS,
    TRIAL,
    Check,
    EventKind,
    instance_checks,
    kernel_checks,
    try_kind,
    uretprobe_check,
    uretprobe_hazard,
)
from kprobe_exporter.tracefs.instance import Instance
from tests.unit.tracefs.conftest import Table

EVENTS = f"instances/{TRIAL}/events"


@pytest.fixture
def instance(table: Table) -> Instance:
    """Return an instance whose files are the table's; it is never closed."""
    table.files |= {"kprobe_events": b"", "uprobe_events": b"", "dynamic_events": b""}
    table.files["available_filter_functions"] = b"vfs_read\next4_open [ext4]\n"
    table.files["README"] = b"\t f[:[<group>/][<event>]] <func-name>[%return] [<args>]"
    table.files |= {
        f"{EVENTS}/sched/sched_process_exec/enable": b"0\n",
        f"{EVENTS}/sched/sched_process_exec/hist": b"",
        f"{EVENTS}/syscalls/sys_exit_openat/enable": b"0\n",
        f"instances/{TRIAL}/set_event_notrace_pid": b"",
        f"instances/{TRIAL}/options/event-fork": b"0\n",
        f"instances/{TRIAL}/options/record-tgid": b"0\n",
    }
    return Instance(table, TRIAL, -1)


def by_name(checks: list[Check]) -> dict[str, Check]:
    found = {check.name: check for check in checks}
    assert len(found) == len(checks)
    assert all((check.fix is None) == (check.state == "ok") for check in checks)
    assert all((check.fix or ".").endswith(".") for check in checks)
    return found


def kind(name: str) -> EventKind:
    return next(kind for kind in KINDS if kind.name == name)


def test_a_kernel_that_can_do_everything(instance: Instance) -> None:
    checks = by_name(instance_checks(instance))
    assert {check.state for check in checks.values()} == {"ok"}
    assert checks["hist"].evidence == "there is events/sched/sched_process_exec/hist"
    assert checks["kretprobe"].evidence == "kprobe_events took 'r16 vfs_mknod return=$retval:s64'"


def test_what_is_defined_is_deleted_and_nothing_else_is_written(table: Table, instance: Instance) -> None:
    instance_checks(instance)
    pairs = list(zip(table.written[::2], table.written[1::2], strict=True))
    assert len(pairs) == len(KINDS)
    for kind, (defined, deleted) in zip(KINDS, pairs, strict=True):
        name = f"{TRIAL}/doctor_{kind.name}"
        assert defined == (kind.file, f"{kind.verb}:{name} {kind.body}")
        assert deleted == ("dynamic_events", f"-:{name}\n")


def test_fprobes_are_not_tried(table: Table, instance: Instance) -> None:
    """Defining one patches the kernel's text, which has side effects where ftrace is switched off."""
    instance_checks(instance)
    assert not [text for _, text in table.written if text.startswith("f")]
    table.files["README"] = b"p[:[<group>/][<event>]]"
    assert by_name(instance_checks(instance))["fprobe"].state == "no"


def test_a_kernel_that_can_do_nothing(table: Table) -> None:
    checks = by_name(instance_checks(Instance(table, TRIAL, -1)))
    assert {check.state for check in checks.values()} == {"no"}
    assert table.written == []
    assert checks["kprobe"].evidence == "there is no kprobe_events"
    assert checks["notrace_pid"].evidence == "there is no set_event_notrace_pid and no options/event-fork"


def test_the_list_of_functions(table: Table, instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = by_name(instance_checks(instance))["functions"].evidence
    assert evidence == "available_filter_functions lists 2 functions"
    del table.files["available_filter_functions"]
    assert "CONFIG_DYNAMIC_FTRACE" in (by_name(instance_checks(instance))["functions"].fix or "")

    def forbid(path: str) -> bytes:
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    monkeypatch.setattr(table, "read", forbid)
    monkeypatch.setattr(table, "exists", lambda path: path != "README")
    check = by_name(instance_checks(instance))["functions"]
    assert check.evidence == "available_filter_functions cannot be read: Operation not permitted"
    assert "what denies uid 0 this file" in (check.fix or "")


def test_half_of_what_keeps_own_threads_out(table: Table, instance: Instance) -> None:
    del table.files[f"instances/{TRIAL}/options/event-fork"]
    check = by_name(instance_checks(instance))["notrace_pid"]
    assert (check.state, check.evidence) == ("no", "there is no options/event-fork")


def test_only_a_trial_write_tells(table: Table, instance: Instance) -> None:
    """The README of 6.18 mentions eprobes, even if the kernel was built without them."""
    table.files["README"] = b"e[:[<group>/][<event>]] <attached-group>.<attached-event>"
    table.refused["dynamic_events"] = errno.EINVAL
    check = try_kind(instance, kind("eprobe"))
    assert check.state == "no"
    assert check.evidence.startswith(
        "dynamic_events refuses 'e sched.sched_process_exec comm=$comm:string': "
    )
    assert "(EINVAL)" in check.evidence
    assert "CONFIG_EPROBE_EVENTS" in (check.fix or "")
    assert len(table.written) == 1


def test_a_refusal_with_the_kernels_own_words(table: Table, instance: Instance) -> None:
    line = f"p:{TRIAL}/doctor_kprobe vfs_mknod"
    table.refused["kprobe_events"] = errno.ENOENT
    table.files["error_log"] = (
        f"[  1.000001] trace_kprobe: error: Invalid probed address or symbol\n  Command: {line}\n"
        + " " * (len("  Command: ") + line.index("vfs"))
        + "^\n"
    ).encode()
    assert "Invalid probed address or symbol" in try_kind(instance, kind("kprobe")).evidence


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.EROFS])
def test_what_is_forbidden_is_not_mended_by_another_kernel(
    table: Table, instance: Instance, code: int
) -> None:
    table.refused["kprobe_events"] = code
    check = try_kind(instance, kind("kprobe"))
    assert check.state == "no"
    assert check.fix == "Let uid 0 write to this file."


FILES = {
    "sys/kernel/security/lockdown": "[none] integrity confidentiality\n",
    "proc/sys/kernel/ftrace_enabled": "1\n",
    "sys/kernel/debug/kprobes/enabled": "1\n",
    "sys/kernel/btf/vmlinux": "",
}


def make(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_nothing_is_wrong(tmp_path: Path) -> None:
    checks = by_name(kernel_checks(make(tmp_path, FILES)))
    assert {check.state for check in checks.values()} == {"ok"}


def test_nothing_is_to_be_seen(tmp_path: Path) -> None:
    checks = by_name(kernel_checks(tmp_path))
    assert {name: check.state for name, check in checks.items()} == {
        "lockdown": "unknown",
        "ftrace_enabled": "unknown",
        "kprobes_enabled": "unknown",
        "btf": "no",
    }
    assert not any(check.required for check in checks.values())


@pytest.mark.parametrize(
    ("modes", "state"),
    [("none [integrity] confidentiality", "ok"), ("none integrity [confidentiality]", "no")],
)
def test_lockdown(tmp_path: Path, modes: str, state: str) -> None:
    root = make(tmp_path, FILES | {"sys/kernel/security/lockdown": f"{modes}\n"})
    check = by_name(kernel_checks(root))["lockdown"]
    assert (check.state, check.evidence) == (state, f"/sys/kernel/security/lockdown is '{modes}'")
    assert check.required


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("ftrace_enabled", "proc/sys/kernel/ftrace_enabled"),
        ("kprobes_enabled", "sys/kernel/debug/kprobes/enabled"),
    ],
)
def test_a_switch_that_is_off(tmp_path: Path, name: str, path: str) -> None:
    check = by_name(kernel_checks(make(tmp_path, FILES | {path: "0\n"})))[name]
    assert (check.state, check.evidence, check.required) == ("warn", f"/{path} is 0", False)


@pytest.mark.parametrize(
    ("release", "machine", "dangerous"),
    [
        *((f"{release}", "x86_64", True) for release in ("6.11", "6.11.0-29-generic", "6.11.10-amd64")),
        *(
            (f"{release}", "x86_64", True)
            for release in ("6.12.9+bpo-amd64", "6.12.13", "6.13.0-rc1", "6.13.2")
        ),
        *((f"{release}", "x86_64", False) for release in ("6.12.14", "6.12.117+deb13-amd64", "6.13.3")),
        *(
            (f"{release}", "x86_64", False)
            for release in ("6.14.0-rc2", "6.18.44", "7.2.13", "10.0", "6.10.14")
        ),
        *((f"{release}", "x86_64", False) for release in ("5.10.0-46-amd64", "", "unknown", "6")),
        *((f"{release}", "aarch64", False) for release in ("6.11.0", "6.12.1")),
    ],
)
def test_uretprobes_under_seccomp(release: str, machine: str, dangerous: bool) -> None:
    hazard, check = uretprobe_hazard(release, machine), uretprobe_check(release, machine)
    assert (hazard is not None, check.state) == (dangerous, "warn" if dangerous else "ok")
    if dangerous:
        assert check.evidence == hazard
        assert str(hazard).startswith(f"on Linux 6.1{release[3]}")
