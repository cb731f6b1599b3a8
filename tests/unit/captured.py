"""Files that real kernels wrote (tests/fixtures), for use in tests."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[1] / "fixtures"
KERNELS = sorted(path.parent.name for path in FIXTURES.glob("*/meta.json"))


@dataclass(frozen=True)
class Captured:
    """One captured file and its entry in the kernel's meta.json."""

    kernel: str
    name: str
    how: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.kernel}/{self.name}"

    @property
    def data(self) -> bytes:
        return (FIXTURES / self.kernel / self.name).read_bytes()

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")

    def beside(self, folder: str) -> "Captured":
        """Return the capture of the same stream in another folder."""
        return Captured(self.kernel, f"{folder}/{Path(self.name).name}", self.how)


def captured(start: str) -> list[Captured]:
    """Return all kernels' files whose names begin with ``start``; fail on none: it would test nothing."""
    found = list(_captured(start))
    assert found, f"no fixture starts with {start}"
    return found


def _captured(start: str) -> Iterator[Captured]:
    for kernel in KERNELS:
        meta = json.loads((FIXTURES / kernel / "meta.json").read_text())
        for name, how in meta["files"].items():
            if name.startswith(start):
                yield Captured(kernel, name, how)
