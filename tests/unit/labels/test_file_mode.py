"""labels.file_mode: `ls` is the oracle."""

import os
import subprocess
from pathlib import Path

import pytest

from kprobe_exporter.labels import DECODERS

decode = DECODERS["file_mode"](None)


@pytest.mark.parametrize("mode", [0o644, 0o000, 0o4755, 0o2644, 0o1777])
def test_letters_of_ls(tmp_path: Path, mode: int) -> None:
    places = [tmp_path / "file", tmp_path / "directory"]
    places[0].touch()
    places[1].mkdir()
    for place in places:
        place.chmod(mode)
        shown = subprocess.run(["ls", "-ld", place], capture_output=True, text=True, check=True).stdout
        assert decode(place.stat().st_mode) == shown[:10]
        assert decode(mode) == shown[1:10]
        assert DECODERS["file_mode"]("octal")(place.stat().st_mode) == f"{mode:04o}"


@pytest.mark.parametrize("path", ["/dev/null", "/tmp", "/proc/self/exe"])
def test_types_of_ls(path: str) -> None:
    shown = subprocess.run(["ls", "-ld", path], capture_output=True, text=True, check=True).stdout
    assert decode(os.lstat(path).st_mode) == shown[:10]


@pytest.mark.parametrize("value", [None, b"x", 1 << 16, -1])
def test_no_mode(value: int | bytes | None) -> None:
    assert decode(value) is None


def test_wrong_option() -> None:
    with pytest.raises(ValueError, match="takes 'octal' or nothing"):
        DECODERS["file_mode"]("hex")
