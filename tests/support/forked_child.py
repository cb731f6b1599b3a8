"""A forked child process, whose exit status is asked for without waiting."""

import os


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
