"""The differences of two saved kernels, against the lists in their archives and known changes of Linux."""

import tarfile
from functools import cache
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load as load_config
from kprobe_exporter.diagnose.kernel_diff import SUBJECTS, NameDifference, compare, compare_probes
from kprobe_exporter.diagnose.saved_kernel import load
from kprobe_exporter.labels import DECODERS

KERNELS = Path("tests/fixtures/kernels")


@cache
def names(subject: str, kernel: str) -> dict[str, str]:
    return SUBJECTS[subject](load(KERNELS / f"{kernel}.tar.xz").kernel)


def differences(subject: str, old: str, new: str) -> dict[str, NameDifference]:
    before, after = names(subject, old), names(subject, new)
    return {one.name: one for one in compare(before, after)}


def archived(name: str, path: str) -> str:
    with tarfile.open(KERNELS / f"{name}.tar.xz") as archive:
        [member] = [one for one in archive.getmembers() if one.name.removeprefix("./") == path]
        file = archive.extractfile(member)
        assert file is not None
        return file.read().decode()


def listed_functions(name: str) -> set[str]:
    lines = archived(name, "tracefs/available_filter_functions").splitlines()
    return {line.split()[0].partition(".")[0] for line in lines}


def test_functions_differ_as_the_archives_lists_do() -> None:
    old, new = listed_functions("6.1"), listed_functions("6.12")
    found = differences("functions", "6.1", "6.12")
    assert {name for name, one in found.items() if one.mark == "-"} == old - new
    assert {name for name, one in found.items() if one.mark == "+"} == new - old
    assert old - new
    assert new - old


def test_tracepoints_differ_as_the_archives_paths_do() -> None:
    def paths(name: str) -> set[str]:
        lines = archived(name, "tracefs.paths").splitlines()
        formats = (line.split("/") for line in lines if line.endswith("/format"))
        return {f"{system}:{event}" for _, system, event, _ in formats}

    found = differences("tracepoints", "5.10", "6.12")
    assert found.keys() == paths("5.10") ^ paths("6.12")


@pytest.mark.parametrize(
    ("subject", "old", "new", "name", "mark"),
    [
        # e3390b30a5df of Linux 6.5: flags for time stamps outgrew 16 bits.
        ("members", "6.1", "6.12", "sock.sk_tsflags", "~"),
        # 2f064a59a11f of Linux 5.14 renamed it, as a lower-case field would have been used by mistake.
        ("members", "5.10", "6.1", "task_struct.state", "-"),
        ("members", "5.10", "6.1", "task_struct.__state", "+"),
        # c504e5c2f964 of Linux 5.17: the reason for which a packet is dropped.
        ("fields", "5.10", "6.1", "skb:kfree_skb.reason", "+"),
    ],
)
def test_known_changes_of_linux(subject: str, old: str, new: str, name: str, mark: str) -> None:
    assert differences(subject, old, new)[name].mark == mark


@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_difference_from_itself_and_a_mirrored_one_backwards(subject: str) -> None:
    before, after = names(subject, "6.1"), names(subject, "6.12")
    assert compare(before, before) == []
    forth, back = compare(before, after), compare(after, before)
    assert [(one.name, one.new, one.old) for one in back] == [(one.name, one.old, one.new) for one in forth]
    assert forth


def test_only_the_owner_is_told_where_it_is_gone() -> None:
    old = {"kept.a": "u8", "kept.b": "u8", "gone.a": "u8"}
    new = {"kept.a": "u16", "kept.c": "u8", "made.a": "u8"}
    assert [f"{one.mark}{one.name}" for one in compare(old, new)] == ["~kept.a", "-kept.b", "+kept.c"]


def test_probes_that_a_new_kernel_attaches_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "probes.yaml"
    file.write_text(
        "probes:\n"
        "  - {name: same, attach: 'kprobe:vfs_read'}\n"
        "  - {name: moved, attach: ['tracepoint:skb:kfree_skb', 'kprobe:vfs_read'], fetch: {why: reason},"
        " metrics: [{counter: drops_total, labels: [why]}]}\n"
        "  - {name: lost, attach: 'kprobe:nosuch_function'}\n"
        "  - {name: many, attach: 'kprobe:tcp_v4_conn*'}\n"
    )
    config = load_config([file], DECODERS)
    found = {
        one.probe: one
        for one in compare_probes(
            config, *(load(KERNELS / f"{name}.tar.xz").kernel for name in ("5.10", "6.1"))
        )
    }
    assert not found["same"].differs
    assert found["moved"].differs
    assert (found["moved"].old.state, found["moved"].new.state) == ("down", "up")
    assert not found["lost"].differs
    assert found["lost"].new.state == "down"
    assert any(name.startswith("many") for name in found)
