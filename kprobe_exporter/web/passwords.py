"""Passwords against their bcrypt hashes: beside the event loop, a few at a time, a success remembered.

A check takes 60 ms at bcrypt's cost of 10, twice that at each step more. Whoever guesses must not take
that time from scrapes, and must not learn from it which names there are.
"""

import asyncio
import os
import secrets
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b

import bcrypt

# How many checks run, wait and are remembered; a client's share of those that run and wait.
RUNNING = 2
MAX_CHECKS = 16
MAX_CHECKS_OF_CLIENT = 4
MAX_REMEMBERED = 128

# Of the threads that check: the tracing goes first.
NICENESS = 10

# All that bcrypt reads of a password.
_SIGNIFICANT = 72


class TooManyChecks(Exception):
    """Others' passwords are being checked; this one may be tried again."""


class Passwords:
    """Checks names and passwords. Lives in one event loop; bcrypt runs in threads beside it."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._remembered: dict[bytes, None] = {}
        self._turn = asyncio.Semaphore(RUNNING)
        self._checks: Counter[str] = Counter()

    async def match(self, users: Mapping[bytes, bytes], name: bytes, password: bytes, client: str) -> bool:
        """Whether a user of this name has this password. Raises TooManyChecks.

        ``client`` is an address, of which a few checks are made at a time. An unknown name takes as
        long as a known one: it is checked against the hash of one of the users, always the same.
        """
        hashed = users.get(name)
        digest = self._digest(name, hashed or b"", password)
        if hashed is not None and digest in self._remembered:
            return True
        if self._checks.total() >= MAX_CHECKS or self._checks[client] >= MAX_CHECKS_OF_CLIENT:
            raise TooManyChecks
        self._checks[client] += 1
        try:
            async with self._turn:
                matches = await _beside(hashed or self._decoy(users, name), password)
        finally:
            self._checks[client] -= 1
            self._checks += Counter()  # forgets who has none
        if hashed is None or not matches:
            return False
        while len(self._remembered) >= MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = None
        return True

    def _digest(self, *parts: bytes) -> bytes:
        """Stands for a name, a hash and a password, and tells nothing of them without our secret."""
        made = blake2b(key=self._secret, digest_size=32)
        for part in parts:
            made.update(len(part).to_bytes(8, "big") + part)
        return made.digest()

    def _decoy(self, users: Mapping[bytes, bytes], name: bytes) -> bytes:
        hashes: Sequence[bytes] = [*users.values()]
        return hashes[int.from_bytes(self._digest(name), "big") % len(hashes)]


async def _beside(hashed: bytes, password: bytes) -> bool:
    """bcrypt's answer, from a thread of its own: nothing waits for it when the process ends."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bool] = loop.create_future()

    def settle(matches: bool) -> None:
        if not answer.done():
            answer.set_result(matches)

    def check() -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            matches = bcrypt.checkpw(password[:_SIGNIFICANT], hashed)
        except ValueError:  # a salt that no bcrypt has made
            matches = False
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, matches)

    threading.Thread(target=check, name="password", daemon=True).start()
    return await answer
