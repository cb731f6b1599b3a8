"""The checked values of ``record``: which recordings there are, and where their files go."""

from typing import Literal, NamedTuple, TypeAlias

Format: TypeAlias = Literal["trace.dat", "perfetto"]


class Condition(NamedTuple):
    """Events of a probe that cut the recording out: those that meet ``where``, None for all."""

    probe: str
    where: str | None = None

    def __str__(self) -> str:
        return self.probe if self.where is None else f"{self.probe}: {self.where}"


class RecordingSettings(NamedTuple):
    """The fields of ``RecordingModel`` describe it.

    ``probes`` are names, or ``NAME_*`` of a probe with a pattern. ``tracepoints`` are as ``SYSTEM/EVENT``.
    Times are in seconds, ``buffer_size`` is in bytes per CPU.
    """

    name: str
    probes: tuple[str, ...] = ()
    tracepoints: tuple[str, ...] = ()
    window: float = 2.0
    buffer_size: int = 1 << 20
    when: tuple[Condition, ...] = ()
    every: float = 10.0
    formats: tuple[Format, ...] = ("trace.dat",)
    marks: bool = False

    @property
    def counter(self) -> str:
        """The metric that counts the events that meet a condition, without the namespace."""
        return f"record_{self.name}_total"


class RecordSettings(NamedTuple):
    """All recordings and their directory; the fields of ``RecordModel`` describe them."""

    directory: str
    max_bytes: int
    max_files: int
    recordings: tuple[RecordingSettings, ...] = ()

    @property
    def condition_probes(self) -> frozenset[str]:
        return frozenset(condition.probe for one in self.recordings for condition in one.when)
