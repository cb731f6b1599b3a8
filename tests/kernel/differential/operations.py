"""Draws the operations of a load: mostly those that reach the points of a case, by several threads."""

from collections.abc import Callable, Collection, Sequence
from random import Random

from tests.kernel.differential.load import Operation

COMMS = (b"worker", b"a b", b'q"x\\', b"fifteen-letters", b"\xff\xfe", b"new\nline")
PATHS = (
    *(b"/nonexistent", b"relative", b"/a b", b'/quote"d', b"/back\\slash", b"/new\nline", b"/\xff\xfe"),
    b"",
)
UIDS = (0, 1, 33, 1000, 65534, 65536, 2**31 - 1, 2**31, 3_000_000_000)
SMALL = (-4096, -4095, -22, -14, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 100)
EDGES = (127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40 + 1)
FAR = (2**62, -(2**62), 2**63 - 1, -(2**63))

LONGEST = 3900
"""Bytes of a text whose record still fits into a page."""


class OperationDrawing:
    """Draws the operations of one case."""

    def __init__(self, random: Random, points: Sequence[str], excluded: Collection[str]) -> None:
        self._random, self._points, self._excluded = random, points, excluded
        self._draws: dict[str, Callable[[int], list[Operation]]] = {
            "take_value": self._take_value,
            "go_deeper": self._go_deeper,
            "take_nap": self._take_nap,
            "fork_inside": lambda t: [Operation(t, "fork_inside", self.number())],
            "quit_inside": lambda t: [Operation(t, "quit_inside", self.number())],
            "leap_out": self._leap_out,
            "pair_begin": self._pair,
            "pair_end": self._pair,
            "setfsuid": lambda t: [Operation(t, "setfsuid", self._random.choice(UIDS))],
            "sched_get_priority_max": self._priority_max,
            "getpriority": self._getpriority,
            "chroot": self._chroot,
            "rt_sigtimedwait": lambda t: [Operation(t, "rt_sigtimedwait", self.microseconds())],
            "execve": self._execve,
        }

    def operations(self, phase: int) -> tuple[Operation, ...]:
        """Draw the operations of one phase; pairs do not reach from one phase into another."""
        self._phase = phase
        operations: list[Operation] = []
        threads = self._random.randint(1, 3)
        for _ in range(self._random.randint(2, 14)):
            thread = self._random.randrange(threads)
            if self._random.random() < 0.15:
                operations.append(self._aside(thread))
            points = self._points if self._random.random() < 0.9 else sorted(self._draws)
            operations += self._draws[self._random.choice(points)](thread)
        if self._random.random() < 0.2:
            operations.append(Operation(self._random.randrange(threads), "quit_inside", self.number(), 1))
        return tuple(operations)

    def number(self) -> int:
        """Draw a number, often a small one."""
        pools = [SMALL, SMALL, EDGES] + ([] if self._random.random() < 0.8 else [FAR])
        pool = self._random.choice(pools)
        return self._random.choice(pool) if self._random.random() < 0.8 else self._random.getrandbits(40)

    def path(self) -> bytes:
        """Draw a text, at times with bytes that are hard to print, and with a length around a limit."""
        path = self._random.choice(PATHS)
        if self._random.random() < 0.3:
            lengths = [126, 127, 128, 129, 250, 1023]
            if "large_records" not in self._excluded:
                lengths += [4000, 4040, 4060, 4090]
            length = self._random.choice(lengths) if self._random.random() < 0.8 else LONGEST
            path += b"x" * (length - len(path))
        return path

    def microseconds(self) -> int:
        return self._random.choice((1, 100, 1000, 5000, 20_000))

    def _aside(self, thread: int) -> Operation:
        """Draw what changes the thread, and fires nothing."""
        name = self._random.choice(("rename", "pin", "signal", "pause"))
        if name == "rename":
            return Operation(thread, name, text=self._random.choice(COMMS))
        if name == "pin":
            return Operation(thread, name, self._random.randrange(2))
        return Operation(thread, name, 40 if name == "signal" else 500)

    def _take_value(self, thread: int) -> list[Operation]:
        same = Operation(thread, "take_value", self.number(), text=self.path())
        return [same] * self._random.choice((1, 1, 1, 2, 5, 30 if len(same.text) < 500 else 1))

    def _go_deeper(self, thread: int) -> list[Operation]:
        return [Operation(thread, "go_deeper", self._random.randint(0, 6), self.number())]

    def _take_nap(self, thread: int) -> list[Operation]:
        return [Operation(thread, "take_nap", self.microseconds())]

    def _leap_out(self, thread: int) -> list[Operation]:
        """After each leap comes a call that returns, by which the agent sees that the other one ended."""
        leaps = [self._random.randint(0, 2) for _ in range(self._random.randint(1, 3))]
        return [Operation(thread, "leap_out", self.number(), leap) for leap in (*leaps, 0)]

    def _chroot(self, thread: int) -> list[Operation]:
        path = self.path()
        if not path and "empty_texts" in self._excluded:
            path = b"/"
        return [Operation(thread, "chroot", text=path)]

    def _pair(self, thread: int) -> list[Operation]:
        """Draw beginnings and ends in any order, by few keys."""
        names = [self._random.choice(("pair_begin", "pair_end")) for _ in range(self._random.randint(1, 6))]
        keys = [500 * self._phase + self._random.randrange(3) for _ in names]
        return [Operation(thread, name, key, self.number()) for name, key in zip(names, keys, strict=True)]

    def _priority_max(self, thread: int) -> list[Operation]:
        policy = self._random.choice((0, 1, 2, 3, 5, 6, 100, -1, 2**31 - 1))
        return [Operation(thread, "sched_get_priority_max", policy)]

    def _getpriority(self, thread: int) -> list[Operation]:
        which, who = self._random.choice((0, 0, 1, 2, 3, -1)), self._random.choice((0, 0, 1, 999_999, -5))
        return [Operation(thread, "getpriority", which, who)]

    def _execve(self, thread: int) -> list[Operation]:
        of_a_thread = int(self._random.random() < 0.5)
        return [Operation(thread, "execve", self.number(), of_a_thread, b"/path")]
