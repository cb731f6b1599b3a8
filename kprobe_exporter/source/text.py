"""Reads trace_pipe, the kernel's text, into a parser of lines."""

import os
from collections.abc import Callable
from typing import Any, Protocol

from kprobe_exporter.errors import SourceError
from kprobe_exporter.model.values import Batch

READ_BYTES = 65536
"""More than a read ever returns: one trace_seq, 4 KiB on 6.1 and 8 KiB on 6.12."""

BATCH_BYTES = 65536
"""Text that makes a batch: adding up 600 records at once costs half of what 40 at a time do."""

MOST_BATCHES = 2500
"""Batches in one round: 160 MB of text, more than the ring buffers hold. It ends a round during a flood."""


class LinesParser(Protocol):
    """Turns the bytes into batches, and keeps what is unfinished."""

    def feed(self, data: bytes) -> Batch: ...
    def resume_from(self, before: Any) -> None: ...


class TextPipe:
    """One trace_pipe and its parser; ``deliver`` gets a batch for each BATCH_BYTES, and for what is left."""

    pause = 20  # ms; waking for each event would cost the kernel and the agent more than the event

    def __init__(self, pipe: int, parser: LinesParser, deliver: Callable[[Batch], None]) -> None:
        self.descriptors = [pipe]
        self._pipe = pipe
        self._parser = parser
        self._deliver = deliver

    def empty(self, *, last: bool) -> None:
        """Read until nothing is left. End of file is not the end: tracing_on is 0, and may become 1 again."""
        for _ in range(MOST_BATCHES):
            text = bytearray()
            try:
                while len(text) < BATCH_BYTES and (data := self._read()):
                    text += data
            finally:  # what was read before an error is delivered
                if text:
                    self._deliver(self._parser.feed(bytes(text)))
            if len(text) < BATCH_BYTES:
                return

    def _read(self) -> bytes:
        try:
            return os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise SourceError(f"trace_pipe cannot be read any more: {error.strerror}.") from error

    def adopt(self, parser: LinesParser) -> None:
        """Continue with a parser for other layouts, between two rounds."""
        parser.resume_from(self._parser)
        self._parser = parser

    def close(self) -> None:
        os.close(self._pipe)
