"""Checks passwords against bcrypt hashes in threads, a few at a time, and remembers successes.

A check takes 60 ms at bcrypt's cost of 10, and twice as long at each step above. A client that guesses
passwords must not delay scrapes by that time, nor learn from it which user names exist.
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

# Limits on checks: how many run; run or wait, in all and for one client; and are remembered.
RUNNING = 2
MAX_CHECKS = 16
MAX_CHECKS_OF_CLIENT = 4
MAX_REMEMBERED = 128

# The nice value of the threads that check passwords: tracing has priority over them.
NICENESS = 10

# bcrypt uses only this many bytes of a password.
_SIGNIFICANT = 72


class TooManyChecks(Exception):
    """Too many other checks are under way; the client may try again."""


class Passwords:
    """Checks user names and passwords. Used in one event loop; bcrypt runs in separate threads."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._remembered: dict[bytes, None] = {}
        self._turn = asyncio.Semaphore(RUNNING)
        self._checks: Counter[str] = Counter()

    async def match(self, users: Mapping[bytes, bytes], name: bytes, password: bytes, client: str) -> bool:
        """Return whether a user of this name has this password. Raises TooManyChecks.

        ``client`` is the client's address, which limits its checks under way. An unknown name takes as long
        as a known one: it is checked against the hash of one of the users, always the same for this name.
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
            self._checks += Counter()  # removes clients without checks
        if hashed is None or not matches:
            return False
        while len(self._remembered) >= MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = None
        return True

    def _digest(self, *parts: bytes) -> bytes:
        """Return a keyed digest of a name, a hash and a password; it reveals nothing without our secret."""
        made = blake2b(key=self._secret, digest_size=32)
        for part in parts:
            made.update(len(part).to_bytes(8, "big") + part)
        return made.digest()

    def _decoy(self, users: Mapping[bytes, bytes], name: bytes) -> bytes:
        hashes: Sequence[bytes] = [*users.values()]
        return hashes[int.from_bytes(self._digest(name), "big") % len(hashes)]


async def _beside(hashed: bytes, password: bytes) -> bool:
    """Run bcrypt in a daemon thread, for which the process does not wait when it ends."""
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
        except ValueError:  # the hash's salt is invalid
            matches = False
        with suppress(RuntimeError):  # the event loop has been closed meanwhile
            loop.call_soon_threadsafe(settle, matches)

    threading.Thread(target=check, name="password", daemon=True).start()
    return await answer
