"""A forked child process, whose exit status is asked for without waiting, or which does one work."""

import os
from collections.abc import Callable


class ForkedChild:
    """The process ``pid``, a child of this one."""

    pid: int
    _status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, -N if signal N ended the process, or None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def in_a_child(work: Callable[[], object]) -> int:
    """Do this in a forked child, which must not raise an exception; return the child's id."""
    pid = started(work)
    assert os.waitpid(pid, 0)[1] == 0
    return pid


def started(work: Callable[[], object]) -> int:
    """Fork a child that does this and ends, with status 70 if it raises an exception; return its id."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def become_nobody() -> None:
    """Give up uid 0, the groups included."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
