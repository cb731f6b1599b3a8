"""A module that runs as a process on a CPU of its own: it is told a line and answers a line."""

import subprocess
import sys
from types import TracebackType
from typing import Self


class OwnCpu:
    """The process, until the context is left."""

    def __init__(self, module: str, cpu: int) -> None:
        command = [sys.executable, "-m", module, str(cpu)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: object) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process as process:
            process.terminate()
