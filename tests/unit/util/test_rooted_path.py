"""rooted_path: a path is resolved as the kernel does, but links never lead out of an entered root."""

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kprobe_exporter.util import rooted_path
from kprobe_exporter.util.file_access import NotRegularError
from kprobe_exporter.util.rooted_path import open_rooted, status


@pytest.fixture
def container(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A directory, and its path through a process's working directory: a link of procfs, like its root."""
    directory = tmp_path / "container"
    (directory / "usr/bin").mkdir(parents=True)
    (directory / "usr/bin/true").write_text("the container's")
    with subprocess.Popen(["cat"], cwd=directory, stdin=subprocess.PIPE) as process:
        yield directory, f"/proc/{process.pid}/cwd"
        process.communicate()


def inode(path: str | Path) -> tuple[int, int]:
    found = Path(path).stat()
    return found.st_dev, found.st_ino


def rooted(path: str | Path) -> tuple[int, int]:
    found = status(str(path))
    return found.st_dev, found.st_ino


@pytest.mark.parametrize(
    "path",
    [
        *("/usr/bin/env", "/bin/sh", "/", "/usr/bin/../../etc/passwd", "//etc/./passwd", "/../etc/passwd"),
        *("/proc/self/exe", "/proc/self/root/bin/sh", "/proc/thread-self/cwd", "/proc/self/../version"),
        "/proc/self/root/proc/self/root/usr/bin/env",
    ],
)
def test_the_same_file_as_the_kernel_finds(path: str) -> None:
    assert rooted(path) == inode(path)


@pytest.mark.parametrize("target", ["/usr/bin/true", "../../../../../../../usr/bin/true", "/../usr/bin/true"])
def test_a_link_inside_a_container_stays_there(container: tuple[Path, str], target: str) -> None:
    """An absolute link in a container names the container's file there, and the host's here."""
    directory, root = container
    (directory / "x").symlink_to(target)
    if target.startswith("/"):
        assert inode(f"{root}/x") == inode("/usr/bin/true")
    assert rooted(f"{root}/x") == inode(directory / "usr/bin/true")
    with open_rooted(f"{root}/x") as file:
        assert file.read() == b"the container's"


def test_a_directory_that_is_a_link_stays_there(container: tuple[Path, str]) -> None:
    directory, root = container
    (directory / "bin").symlink_to("/usr/bin")
    (directory / "conf").symlink_to("/etc")
    assert rooted(f"{root}/bin/true") == inode(directory / "usr/bin/true")
    with pytest.raises(FileNotFoundError):
        status(f"{root}/conf/passwd")
    with pytest.raises(FileNotFoundError):
        status(f"{root}/../../../../../../../../etc/passwd")


def test_a_link_into_a_container(container: tuple[Path, str], tmp_path: Path) -> None:
    """The container's root may itself be reached by a link."""
    directory, root = container
    (directory / "x").symlink_to("/usr/bin/true")
    (tmp_path / "link").symlink_to(root)
    assert rooted(tmp_path / "link/x") == inode(directory / "usr/bin/true")


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "fifo", tmp_path, "/dev/null"):
        with pytest.raises(NotRegularError):
            open_rooted(str(path))
    for path, error in [("absent", 2), ("file/x", 20), ("loop", 40)]:
        with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is compared
            open_rooted(str(tmp_path / path))
        assert caught.value.errno == error
    with pytest.raises(ValueError, match="null"):
        open_rooted("/a\0b")


def test_a_path_of_very_many_directories(tmp_path: Path) -> None:
    """A link's text may have 2,000 components, each of which would take a descriptor."""
    (tmp_path / "a").mkdir()
    (tmp_path / "deep").symlink_to("/".join(["a"] * 2000))
    with pytest.raises(FileNotFoundError):
        status(str(tmp_path / "deep"))
    deepest = tmp_path.joinpath(*["a"] * 200)
    deepest.mkdir(parents=True)
    with pytest.raises(OSError, match="too long"):
        status(str(deepest))


def test_links_that_go_back_and_forth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 links of 4 KB make 80,000 components, though none of them is deep."""
    name = tmp_path / "x"
    (tmp_path / "d").mkdir()
    name.touch()
    for number in range(39):
        link = tmp_path / f"link{number}"
        link.symlink_to("d/../" * 800 + name.name)
        name = link
    looked, fstat = 0, os.fstat

    def counted(descriptor: int) -> os.stat_result:
        nonlocal looked
        looked += 1
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", counted)
    with pytest.raises(OSError, match="name too long"):
        status(str(name))
    assert looked <= 2 * rooted_path.MOST_STEPS


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("here")
    monkeypatch.chdir(tmp_path)
    with open_rooted("file") as file:
        assert file.read() == b"here"


def test_no_descriptor_stays_open(container: tuple[Path, str]) -> None:
    directory, root = container
    (directory / "x").symlink_to("/usr/bin/true")
    before = os.listdir("/proc/self/fd")
    for path in (f"{root}/x", "/bin/sh", f"{root}/absent", "/proc/self/exe"):
        with suppress(OSError):
            open_rooted(path).close()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("mode", "owner", "link_owner", "follows"),
    [
        (0o1777, 0, 1000, False),
        (0o1777, 0, 0, True),
        (0o1777, 1000, 1000, True),
        (0o0777, 0, 1000, True),
        (0o1775, 0, 1000, True),
    ],
)
def test_links_of_others_in_shared_directories(
    mode: int, owner: int, link_owner: int, follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel itself refuses them by fs.protected_symlinks, but does not see that they are followed."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    directory = os.stat_result((stat.S_IFDIR | mode, 1, 1, 1, owner, 0, 0, 0, 0, 0))
    link = os.stat_result((stat.S_IFLNK | 0o777, 2, 1, 1, link_owner, 0, 0, 0, 0, 0))
    if follows:
        rooted_path._require_followable(directory, link, "/tmp/x")
    else:
        with pytest.raises(PermissionError):
            rooted_path._require_followable(directory, link, "/tmp/x")
