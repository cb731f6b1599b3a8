"""Turns of clients: a few calls run at a time, and the networks that wait for one take turns."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from kprobe_exporter.web.networks import Network


class Turns:
    """Lets ``limit`` calls run at a time. Used in one event loop.

    The wide network that has waited longest since its latest turn is next, in it the narrow one, and in that
    the client. A client with many connections or addresses thus delays another network by one call.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running = 0
        self._waiting: dict[asyncio.Future[None], Collection[Network]] = {}
        # For each network that waits: a number that grows, drawn when it came or had its latest turn.
        self._since: dict[Network | str, int] = {}
        self._numbers = itertools.count()

    @asynccontextmanager
    async def turn(self, networks: Collection[Network]) -> AsyncIterator[None]:
        """Wait for a turn of one of the networks, to which others may be added meanwhile, and hold it."""
        await self._wait(networks)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, networks: Collection[Network]) -> None:
        if self._running < self._limit:
            self._running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = networks
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if not turn.cancelled():  # it was this one's turn just now
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the next client, or end it if none waits."""
        waiting = [turn for turn in self._waiting if not turn.done()]
        if not waiting:
            self._running -= 1
            self._since.clear()
            return
        turn = min(waiting, key=self._order)
        for key in _keys(self._waiting.pop(turn)):
            self._since[key] = next(self._numbers)
        # Nothing is known of a network that does not wait: if it returns, it is behind the others.
        present = {key for networks in self._waiting.values() for key in _keys(networks)}
        self._since = {key: number for key, number in self._since.items() if key in present}
        turn.set_result(None)

    def _order(self, turn: asyncio.Future[None]) -> tuple[int, int]:
        numbers = [self._since.setdefault(key, next(self._numbers)) for key in _keys(self._waiting[turn])]
        return min(zip(numbers[::2], numbers[1::2], strict=True))


def _keys(networks: Collection[Network]) -> list[Network | str]:
    return [key for network in networks for key in (network.wide, network)]
