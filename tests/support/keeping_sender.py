"""A sender of OTLP that keeps what it is given, in place of a transport to a collector."""

from collections.abc import Sequence
from typing import Any


class KeepingSender:
    """Takes every item."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def export(self, items: Sequence[Any]) -> int:
        self.items += items
        return len(items)

    def pause(self) -> float:
        return 0

    def stop(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass
