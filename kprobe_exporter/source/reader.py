"""The background thread that reads the ring buffer, as pages or text, and hands batches on."""

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from kprobe_exporter.errors import SourceError

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMER_MS = 100
"""The longest wait for events: poll of trace_pipe_raw returns only when the buffer is half full."""


class Pipe(Protocol):
    """A source of events: its descriptors, and the work of emptying it. The reader's thread owns it.

    After ``empty``, ``descriptors`` are those that wake a reader; more may come with each call.

    ``empty`` reads and delivers all that was there when it was called, in bounded time, however much arrives
    meanwhile. If ``last``, it also delivers what it held back. ``pause`` is the time in milliseconds after
    that, before the thread looks for new events.
    """

    @property
    def descriptors(self) -> Sequence[int]: ...
    @property
    def pause(self) -> int: ...
    def empty(self, *, last: bool) -> None: ...
    def close(self) -> None: ...


class Reader:
    """Empties one pipe in a background thread until closed.

    Only the thread touches the pipe. ``_progress`` guards ``_calls`` and ``_round``, which counts how often
    the pipe was emptied. ``drain`` waits on it. ``call`` has the thread run a function between two rounds, so
    that the function may change what the thread owns. Other threads may call both, and ``close``, which may
    be called more than once and unblocks the thread at once. An error of the thread ends it and is handed to
    ``on_error``, once. The thread calls ``emptied`` after each time that it emptied the pipe.
    """

    def __init__(
        self,
        pipe: Pipe,
        on_error: Callable[[BaseException], None],
        emptied: Callable[[], None] = lambda: None,
    ) -> None:
        self._pipe = pipe
        self._on_error = on_error
        self._emptied = emptied
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._progress = threading.Condition()
        self._round = 0
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._ended = False
        self._closing = threading.Event()
        self._close_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="kprobe-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def drain(self, timeout: float) -> bool:
        """Wait until the pipe's present content was delivered; return whether ``timeout`` seconds sufficed.

        Two rounds have to pass, because the current one may have looked before the call.
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

    def progress(self) -> int:
        """Return a number that rises with every round of the thread, every TIMER_MS at the latest."""
        return self._round

    def call(self, do: Callable[[], T]) -> T:
        """Run ``do`` between two rounds and wait for it; return what it returns, or raise what it raises.

        Raises SourceError if the thread no longer reads.
        """
        done: Future[T] = Future()
        with self._progress:
            if self._ended:
                raise SourceError("no events are read any more.")
            self._calls.append((do, done))
            self._nudge()
        return done.result()

    def close(self) -> None:
        """End the thread, after it has read what is there, and close the pipe."""
        with self._close_lock:
            if self._closing.is_set():
                return
            self._closing.set()
            self._nudge()
            if self._thread.is_alive():
                self._thread.join()
            with self._progress:  # no drain may write to a number that another file has by now
                os.close(self._wake)
                self._wake = -1
            self._pipe.close()

    def _moved_on(self, seen: int) -> bool:
        return self._round > seen or self._ended

    def _nudge(self) -> None:
        with suppress(OSError):  # closed meanwhile: no thread is left to be woken
            os.eventfd_write(self._wake, 1)

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
            for _, done in self._calls:
                done.set_exception(SourceError("no events are read any more."))

    def _read_until_closed(self) -> None:
        pause, wait = select.epoll(), select.epoll()
        with pause, wait:
            for poll in (pause, wait):
                poll.register(self._wake, select.EPOLLIN)
            registered: set[int] = set()
            while True:
                last = self._closing.is_set()
                self._pipe.empty(last=last)
                for descriptor in set(self._pipe.descriptors) - registered:
                    wait.register(descriptor, select.EPOLLIN)
                    registered.add(descriptor)
                self._emptied()
                self._do_calls()
                with self._progress:
                    self._round += 1
                    self._progress.notify_all()
                if last:
                    return
                if not (self._pipe.pause and self._woken(pause, self._pipe.pause)):
                    self._woken(wait, TIMER_MS)

    def _do_calls(self) -> None:
        while self._calls:
            do, done = self._calls.popleft()
            try:
                done.set_result(do())
            except BaseException as error:
                done.set_exception(error)

    def _woken(self, poll: select.epoll, milliseconds: int) -> bool:
        """Wait; return whether ``_nudge`` ended the wait."""
        if any(fd == self._wake for fd, _ in poll.poll(milliseconds / 1000)):
            os.eventfd_read(self._wake)
            return True
        return False
