"""Handles the signals that end a trace, and waits for descriptors until such a signal comes."""

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from kprobe_exporter.service.shutdown import Shutdown

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupt(Shutdown):
    """The request to stop, made by a signal; a second one sets ``gives_up``: the rest is not written.

    Only the main thread uses it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gives_up = False
        self._in_write = False

    @contextmanager
    def heeded(self) -> Iterator["Interrupt"]:
        """Handle the signals inside the block, and restore the previous handlers after it.

        Signals interrupt no step but a write within ``in_write``. A SIGHUP that nohup ignores stays ignored.
        """

        def end(number: int, frame: FrameType | None) -> None:
            self.gives_up = self.is_set()
            self.set()
            if self._in_write:
                raise InterruptedError  # a write to a terminal stopped by Ctrl-S would block forever

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
        """Return when a descriptor can be read, on a request to stop, or after ``seconds``.

        A request to stop is also made when the reader of ``watched`` has closed its end.
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
        """Let signals raise InterruptedError inside the block."""
        self._in_write = True
        try:
            yield
        finally:
            self._in_write = False

    def wait_for_room(self, descriptor: int, seconds: float) -> bool:
        """Wait until ``descriptor`` takes data; False after ``seconds``, or on a new request to stop."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if not self.is_set():
            poll.register(self._read, select.POLLIN)
        return any(ready == descriptor for ready, _ in poll.poll(seconds * 1000))

    def _close(self) -> None:
        for descriptor in (self._read, self.wake_up_fd):
            with suppress(OSError):
                os.close(descriptor)
