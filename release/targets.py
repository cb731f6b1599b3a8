"""The processors that are released for, each with its name in every format."""

import platform
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/release"


@dataclass(frozen=True, slots=True)
class Target:
    """One processor: its name in the kernel, wheels and RPM, in Debian and OCI, and for the compiler."""

    machine: str
    debian: str
    triple: str

    @property
    def platform(self) -> str:
        """The platform of its wheels. PEP 599: glibc 2.17 and newer."""
        return f"manylinux2014_{self.machine}"


AMD64 = Target("x86_64", "amd64", "x86_64-linux-gnu.2.17")
ARM64 = Target("aarch64", "arm64", "aarch64-linux-gnu.2.17")
TARGETS = (AMD64, ARM64)


def own_target() -> Target:
    """Return the target that is this machine's processor. Raises ReleaseError."""
    machine = platform.machine()
    if found := next((target for target in TARGETS if target.machine == machine), None):
        return found
    raise ReleaseError(f"no package is made for {machine}")


class ReleaseError(Exception):
    """What is built is wrong, or cannot be built; the message says why."""
