"""The models of ``record`` as users write it."""

from typing import Annotated

from pydantic import AfterValidator, Field

from kprobe_exporter.config.fields import PROBE_NAME, Duration, Size, Strict, Where, no_items
from kprobe_exporter.config.recordings import Format
from kprobe_exporter.config.wording import quote

DIRECTORY = "/var/lib/kprobe_exporter/recordings"


def _formats() -> list[Format]:
    return ["trace.dat"]


def _absolute(path: str) -> str:
    if not path.startswith("/") or path == "/":
        raise ValueError(f"{quote(path)} is not an absolute path: write it as /var/lib/kprobe_exporter")
    return path


class ConditionModel(Strict):
    """Events of a probe that cut the recording out."""

    probe: Annotated[str, Field(pattern=PROBE_NAME)]
    """The name of a probe; the recording need not contain it."""
    where: Where | None = None
    """The condition, evaluated in the agent, as `duration > 500ms`; without it every event counts."""


class RecordingModel(Strict):
    """A recording: the last seconds of some probes, which a condition writes to files."""

    name: Annotated[str, Field(pattern=PROBE_NAME)]
    """Unique; the beginning of its files' names."""
    probes: Annotated[
        list[Annotated[str, Field(max_length=200)]],
        Field(min_length=1, max_length=64, examples=[["slow_reads", "tracepoint:sched:sched_switch"]]),
    ]
    """The recorded events: names of probes, and tracepoints as `tracepoint:SYSTEM:EVENT`."""
    window: Annotated[Duration, Field(gt=0, le=3600, examples=["2s"])] = 2.0
    """The seconds before the cut that a file has, as `2s`, if the buffer holds as much."""
    buffer_size: Size = 1 << 20
    """Ring buffer size per CPU, as `1MiB`. There are two of them, `global.buffer_total` at most together."""
    when: Annotated[list[ConditionModel], Field(max_length=16)] = Field(default_factory=no_items)
    """The conditions, one a probe. SIGUSR1 and `POST /-/record` always write the recording."""
    every: Annotated[Duration, Field(ge=1, examples=["10s"])] = 10.0
    """The seconds from one file to the next, at least; earlier conditions are refused."""
    marks: bool = False
    """Whether the files have the marks that programs write to the recording's `trace_marker`."""
    formats: Annotated[list[Format], Field(min_length=1, max_length=2)] = Field(default_factory=_formats)
    """`trace.dat` for trace-cmd and KernelShark, `perfetto` for ui.perfetto.dev."""


class RecordModel(Strict):
    """Recordings: the last seconds before an event, in files."""

    directory: Annotated[str, Field(max_length=4000), AfterValidator(_absolute)] = DIRECTORY
    """The absolute path of the directory of all files. It is made, and may not be a link."""
    max_bytes: Size = 256 << 20
    """The size of all files together, as `256MiB`; the oldest ones make room."""
    max_files: Annotated[int, Field(ge=1, le=10_000)] = 100
    """The number of all files."""
    recordings: Annotated[list[RecordingModel], Field(max_length=16)] = Field(default_factory=no_items)
    """The recordings; one file of the configuration has them all."""
