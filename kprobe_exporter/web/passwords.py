"""Checks passwords against bcrypt hashes, a few at a time, and remembers successes.

A check takes 60 ms at bcrypt's cost of 10, and twice as long at each step above. Clients that guess
passwords must not delay scrapes by that time, nor learn from it which user names exist: a password that was
right before is known at once, and for other checks the clients' networks take turns.
"""

import asyncio
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b

from kprobe_exporter.web.networks import Network
from kprobe_exporter.web.turns import Turns

# How many checks run at a time, and how many right passwords are remembered.
RUNNING = 2
MAX_REMEMBERED = 128

# The nice value of the threads that check passwords: tracing has priority over them.
NICENESS = 10

# bcrypt uses only this many bytes of a password.
_SIGNIFICANT = 72


class Passwords:
    """Checks user names and passwords. Used in one event loop; bcrypt runs in threads."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._remembered: dict[bytes, None] = {}
        self._turns = Turns(RUNNING)

    async def match(
        self,
        users: Mapping[bytes, bytes],
        name: bytes,
        password: bytes,
        network: Network,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Return whether a user of this name has this password.

        ``network`` is the client's, which takes turns with others. If the client ``is_gone`` by then, its
        password is not checked, and does not match. An unknown name takes as long as a known one: it is
        checked against the hash of one of the users, always the same for this name.
        """
        hashed = users.get(name)
        digest = self._digest(name, hashed or b"", password)
        if hashed is not None and digest in self._remembered:
            return True
        async with self._turns.turn([network]):
            decoy = [*users.values()][int.from_bytes(self._digest(name), "big") % len(users)]
            matches = not is_gone() and await _beside(hashed or decoy, password)
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


async def _beside(hashed: bytes, password: bytes) -> bool:
    """Run bcrypt in a daemon thread, for which the process does not wait when it ends."""
    import bcrypt  # noqa: PLC0415  # most agents have no passwords

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
