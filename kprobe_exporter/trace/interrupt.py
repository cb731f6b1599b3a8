"""Signals that end a trace, and waiting for descriptors until one comes."""

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from kprobe_exporter.service.shutdown import Stop

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupt(Stop):
    """The request to stop, made by a signal; the second one ``insists``: what is left is not written.

    Used by the main thread alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.insists = False
        self._in_write = False

    @contextmanager
    def heeded(self) -> Iterator["Interrupt"]:
        """Take the signals, which cut no step in two; afterwards they are whose they were.

        A SIGHUP that nohup has ignored stays so.
        """

        def end(number: int, frame: FrameType | None) -> None:
            self.insists = self.is_set()
            self.set()
            if self._in_write:
                raise InterruptedError  # a terminal that Ctrl-S has stopped would take no more for ever

        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        heeded = [number for number in ENDING if not (ignored and number == signal.SIGHUP)]
        before = {number: signal.signal(number, end) for number in heeded}
        wake_up = signal.set_wakeup_fd(self.wake_up_fd, warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(wake_up)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._close()

    def wait_for(self, descriptors: Iterable[int], seconds: float, watched: int | None = None) -> None:
        """Return when one of them can be read, when asked to stop, or after so many seconds.

        When nobody reads ``watched`` any more, that is a request to stop.
        """
        if self.is_set():
            return
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        if watched is not None:
            poll.register(watched, 0)
        for descriptor, events in poll.poll(max(0, seconds * 1000)):
            if descriptor == watched and events & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                self.set()

    @contextmanager
    def in_write(self) -> Iterator[None]:
        """Within it a signal raises InterruptedError."""
        self._in_write = True
        try:
            yield
        finally:
            self._in_write = False

    def wait_for_room(self, descriptor: int, seconds: float) -> bool:
        """Wait until it takes something; False after so many seconds, or when asked to stop meanwhile."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if not self.is_set():
            poll.register(self._read, select.POLLIN)
        return any(ready == descriptor for ready, _ in poll.poll(seconds * 1000))

    def _close(self) -> None:
        for descriptor in (self._read, self.wake_up_fd):
            with suppress(OSError):
                os.close(descriptor)
