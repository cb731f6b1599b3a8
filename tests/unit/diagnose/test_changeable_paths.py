"""check: a warning where users other than root may change which program a path names."""

import os
import platform
import shutil
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.diagnose.changeable_paths import _who, writers
from kprobe_exporter.elf.libraries import ABIS
from tests.support.libc import own_libc


def who(mode: int, owner: int = 0, group: int = 0, *, keeps: bool = False) -> str | None:
    with open("/dev/null", "rb") as file:
        status = os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, owner, group, 0, 0, 0, 0))
        return _who(status, file.fileno(), keeps=keeps)


def test_who_may_write() -> None:
    assert who(0o755) is None
    assert who(0o775) is None
    assert who(0o775, group=50) == "may be written by the group 50"
    assert who(0o777) == "may be written by all users"
    assert who(0o755, owner=1000) == "belongs to the user 1000"
    assert who(0o1777, keeps=True) is None
    assert who(0o1777, owner=1000, keeps=True) == "belongs to the user 1000"


def test_an_access_control_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a list, the group's bits are its mask."""
    monkeypatch.setattr(os, "listxattr", lambda _: ["system.posix_acl_access"])
    assert who(0o775) == "may be written by those in its access control list"
    assert who(0o755) is None


def test_a_program_of_the_system() -> None:
    assert writers("/usr/bin/env") == []
    assert writers("/proc/self/root/usr/bin/env") == []
    assert writers("/absent/program") == []
    assert writers("libc.so.6") == writers("libabsent.so.1") == []


def test_a_library_below_another_root(tmp_path: Path) -> None:
    place = tmp_path / "usr/lib" / ABIS[platform.machine()].directory
    place.mkdir(parents=True)
    shutil.copy(own_libc(), place / "libc.so.6")
    place.chmod(0o777)
    assert any(f"{place} may be written by all users" in one for one in writers(f"{tmp_path}:libc.so.6"))


def test_each_directory_that_a_link_leads_through(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "link").symlink_to("/usr/bin/env")
    (tmp_path / "link").symlink_to("shared/link")
    found = writers(str(tmp_path / "link"))
    assert f"{shared} may be written by all users" in found or os.geteuid() != 0
    assert any(str(shared) in one for one in found)


def test_check_says_it(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "program").symlink_to("/usr/bin/env")
    config = tmp_path / "c.yaml"
    config.write_text(
        f"probes: [{{name: p, attach: 'uprobe:{shared}/program:main'}}, "
        "{name: q, attach: 'uprobe:/usr/bin/env:main'}, {name: r, attach: 'kprobe:vfs_read'}]"
    )
    result = CliRunner().invoke(main, ["check", str(config)])
    assert result.exit_code == 0
    [line] = result.stderr.splitlines()
    assert line.startswith(
        f"warning: the probe 'p': others than root choose which code {shared}/program names: "
    )
    assert f"{shared} " in line
    assert line.endswith("only root should be able to write the file and the directories on its path")
