"""The most memory that a process has had resident since a moment."""

import os
import re
from pathlib import Path


class ResidentPeak:
    """Measures from its making on how much a process, by itself this one, grows at most."""

    def __init__(self, pid: int | None = None) -> None:
        self._process = Path(f"/proc/{os.getpid() if pid is None else pid}")
        (self._process / "clear_refs").write_text("5")  # proc(5): sets VmHWM to VmRSS
        self._before = self._megabytes("VmHWM")

    def added_mb(self) -> float:
        """Return by how many MB the process has grown at most."""
        return self._megabytes("VmHWM") - self._before

    def _megabytes(self, field: str) -> float:
        found = re.search(rf"^{field}:\s+(\d+) kB$", (self._process / "status").read_text(), re.MULTILINE)
        assert found
        return int(found[1]) / 1000
