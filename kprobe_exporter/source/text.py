"""The reader of trace_pipe: one background thread that hands batches on."""

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from kprobe_exporter.errors import SourceError
from kprobe_exporter.model import Batch

log = logging.getLogger(__name__)

READ_BYTES = 65536
"""More than a read ever gives: one trace_seq, 4 KiB on 6.1 and 8 KiB on 6.12."""

PAUSE_MS = 20
"""After the pipe was emptied: waking for each event would cost the kernel and us more than the event."""

TIMER_MS = 100
"""Look again at the latest, for kernels whose poll waits for a filling level."""


LAST_READS = 20_000
"""After ``close``: 80 MB of text, more than the ring buffers hold, so that a flood cannot hold it up."""


class Parser(Protocol):
    """What turns the bytes into batches; keeps what is unfinished to itself."""

    def feed(self, data: bytes) -> Batch: ...


class TextSource:
    """Reads one trace_pipe in a background thread until closed.

    The thread alone touches the descriptor and the parser, and calls ``deliver`` for each batch.
    ``_round`` (under ``_progress``) counts how often the pipe was found empty; ``drain`` waits on
    it. ``close`` may be called from any thread, more than once, and unblocks the reader at once. An
    error of the thread ends it and is handed to ``on_error``, once.
    """

    def __init__(
        self,
        pipe: int,
        parser: Parser,
        deliver: Callable[[Batch], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._pipe = pipe
        self._parser = parser
        self._deliver = deliver
        self._on_error = on_error
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._progress = threading.Condition()
        self._round = 0
        self._ended = False
        self._closing = threading.Event()
        self._close_lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kprobe-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def drain(self, timeout: float) -> bool:
        """Wait until what is in the pipe now was delivered, ``timeout`` seconds at the most.

        True if so. Two rounds have to pass: the one under way may have looked before the call.
        """
        deadline = time.monotonic() + timeout
        for _ in range(2):
            with self._progress:
                seen = self._round
                self._nudge()
                self._progress.wait_for(partial(self._moved_on, seen), deadline - time.monotonic())
                if self._round == seen:
                    return False
        return True

    def close(self) -> None:
        """End the thread, after it has read what is there, and close the pipe."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            self._closing.set()
            self._nudge()
            if self._thread.is_alive():
                self._thread.join()
            with self._progress:  # no drain may nudge a number that is another file's by now
                os.close(self._wake)
                self._wake = -1
            os.close(self._pipe)

    def _moved_on(self, seen: int) -> bool:
        return self._round > seen or self._ended

    def _nudge(self) -> None:
        try:
            os.eventfd_write(self._wake, 1)
        except OSError:  # closed meanwhile: nobody is left to be woken
            return

    def _run(self) -> None:
        try:
            self._read_until_closed()
        except BaseException as error:
            log.debug("reader ended", exc_info=True)
            self._on_error(error)
        finally:
            with self._progress:
                self._ended = True
                self._progress.notify_all()

    def _read_until_closed(self) -> None:
        pause = select.poll()
        pause.register(self._wake, select.POLLIN)
        wait = select.poll()
        wait.register(self._wake, select.POLLIN)
        wait.register(self._pipe, select.POLLIN)
        while True:
            last = self._closing.is_set()
            self._empty_pipe()
            with self._progress:
                self._round += 1
                self._progress.notify_all()
            if last:
                return
            if not self._woken(pause, PAUSE_MS):
                self._woken(wait, TIMER_MS)

    def _woken(self, poll: select.poll, milliseconds: int) -> bool:
        """Wait; True if somebody nudged."""
        if any(fd == self._wake for fd, _ in poll.poll(milliseconds)):
            os.eventfd_read(self._wake)
            return True
        return False

    def _empty_pipe(self) -> None:
        """Read until there is nothing more. End of file is no end: tracing_on is 0, and may be 1 again."""
        left = LAST_READS
        while left:
            left -= self._closing.is_set()
            try:
                data = os.read(self._pipe, READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                raise SourceError(f"trace_pipe cannot be read any more: {error.strerror}.") from error
            if not data:
                return
            self._deliver(self._parser.feed(data))
