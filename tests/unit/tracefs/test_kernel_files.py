"""The kernel's types are mapped where that is possible, and read where it is not."""

import io
from mmap import mmap
from pathlib import Path

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.diagnose.saved_kernel import SavedTracefs
from kprobe_exporter.tracefs.kernel_files import BTF, KernelFiles, running_kernel
from tests.support.btf_samples import structures

DATA = structures().data()
NO_TRACEFS = SavedTracefs((), lambda path: b"")


def test_types_are_mapped(tmp_path: Path) -> None:
    directory = tmp_path / BTF
    directory.mkdir(parents=True)
    (directory / "vmlinux").write_bytes(DATA)
    (directory / "empty").touch()
    files = running_kernel(NO_TRACEFS, tmp_path)
    mapped = files.btf("vmlinux")
    assert isinstance(mapped, mmap)
    assert mapped[:] == DATA
    assert files.btf("empty") == b""
    assert files.types() == ["empty", "vmlinux"]
    found = KernelTypes(files.btf, files.types)
    assert found.member("(sock)x->sk_cookie").offsets == (512,)
    assert found.words("state") == {1: "ON"}


def test_types_that_cannot_be_mapped_are_read() -> None:
    """A saved kernel's are in an archive."""

    def names(path: str) -> list[str]:
        raise FileNotFoundError(path)

    files = KernelFiles(NO_TRACEFS, lambda path: io.BytesIO(DATA), names, "6.1", "x86_64")
    assert files.btf("vmlinux") == DATA
    assert files.types() == []
