"""The right password is accepted, and a client that guesses learns nothing and delays no other client."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import bcrypt
import pytest

from kprobe_exporter.web import passwords as module
from kprobe_exporter.web.networks import network
from kprobe_exporter.web.passwords import Passwords
from tests.support.patience import patience


def hash_of(password: bytes) -> bytes:
    return bcrypt.hashpw(password, bcrypt.gensalt(4))


USERS = {b"alice": hash_of(b"secret"), "jörg".encode(): hash_of("pässwörd".encode())}


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test in an event loop of its own."""

    @wraps(test)
    def run(*args: object, **fixtures: object) -> None:
        asyncio.run(test(*args, **fixtures))

    return run


@pytest.fixture
def passwords() -> Passwords:
    return Passwords()


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The hashes that bcrypt has checked."""
    asked: list[bytes] = []
    check = bcrypt.checkpw

    def checkpw(password: bytes, hashed: bytes) -> bool:
        asked.append(hashed)
        return check(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", checkpw)
    return asked


class Held:
    """A slow bcrypt: each check waits for ``go``."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.lock = threading.Lock()
        self.running = self.most = self.checks = 0
        self.names: set[str] = set()

    def checkpw(self, password: bytes, hashed: bytes) -> bool:
        with self.lock:
            self.checks += 1
            self.running += 1
            self.most = max(self.most, self.running)
            self.names.add(threading.current_thread().name)
        assert self.go.wait(patience(10))
        with self.lock:
            self.running -= 1
        return password == b"secret"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()
    monkeypatch.setattr(bcrypt, "checkpw", held.checkpw)
    return held


@pytest.mark.parametrize(
    ("name", "password", "right"),
    [
        (b"alice", b"secret", True),
        ("jörg".encode(), "pässwörd".encode(), True),
        (b"alice", b"", False),
        (b"alice", b"Secret", False),
        (b"alice", "pässwörd".encode(), False),
        (b"bob", b"secret", False),
        (b"", b"", False),
        (b"alice", b"secret\0", False),
        (b"alice", b"x" * 10_000, False),
        (b"\xff", b"\xff", False),
    ],
)
@in_a_loop
async def test_who_is_who(passwords: Passwords, name: bytes, password: bytes, right: bool) -> None:
    for _ in range(2):
        assert await passwords.match(USERS, name, password, network("a")) is right


@in_a_loop
async def test_bcrypt_reads_72_bytes(passwords: Passwords) -> None:
    """A longer password matches by its first 72 bytes and does not fail, as with Go's bcrypt."""
    users = {b"a": hash_of(b"x" * 72)}
    assert await passwords.match(users, b"a", b"x" * 80, network("a"))
    assert not await passwords.match(users, b"a", b"x" * 71, network("a"))


@in_a_loop
async def test_a_success_is_remembered_and_a_failure_is_not(
    passwords: Passwords, checks: list[bytes]
) -> None:
    for _ in range(3):
        await passwords.match(USERS, b"alice", b"secret", network("a"))
    assert len(checks) == 1
    for _ in range(3):
        await passwords.match(USERS, b"alice", b"guess", network("a"))
    assert len(checks) == 4


@in_a_loop
async def test_what_is_remembered_ends_with_the_password_and_the_user(
    passwords: Passwords, checks: list[bytes]
) -> None:
    assert await passwords.match(USERS, b"alice", b"secret", network("a"))
    assert not await passwords.match({b"alice": hash_of(b"new")}, b"alice", b"secret", network("a"))
    assert not await passwords.match({b"bob": USERS[b"alice"]}, b"alice", b"secret", network("a"))
    # Bytes cannot be moved between a name and a password.
    assert not await passwords.match(USERS, b"alic", b"esecret", network("a"))
    assert len(checks) == 4


@in_a_loop
async def test_no_password_is_kept(passwords: Passwords) -> None:
    await passwords.match(USERS, b"alice", b"secret", network("a"))
    (kept,) = passwords._remembered
    assert len(kept) == 32
    other = Passwords()
    await other.match(USERS, b"alice", b"secret", network("a"))
    assert [*other._remembered] != [kept]


@in_a_loop
async def test_what_is_remembered_is_bounded(passwords: Passwords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 3)
    monkeypatch.setattr(bcrypt, "checkpw", lambda password, hashed: True)
    for number in range(10):
        await passwords.match(USERS, b"alice", b"%d" % number, network("a"))
    assert len(passwords._remembered) == 3


@in_a_loop
async def test_an_unknown_name_costs_what_a_known_one_does(passwords: Passwords, checks: list[bytes]) -> None:
    """One of the users' hashes is checked, always the same one for a name, because the costs may differ."""
    for number in range(40):
        for _ in range(2):
            assert not await passwords.match(USERS, b"user%d" % number, b"secret", network("a"))
    assert len(checks) == 80
    assert checks[0::2] == checks[1::2]
    assert set(checks) == set(USERS.values())


@in_a_loop
async def test_a_hash_that_no_bcrypt_has_made(passwords: Passwords) -> None:
    assert not await passwords.match({b"a": b"$2b$04$" + b"." * 10}, b"a", b"x", network("a"))


@in_a_loop
async def test_guessing_does_not_delay_known_users(passwords: Passwords, held: Held) -> None:
    held.go.set()
    assert await passwords.match(USERS, b"alice", b"secret", network("scraper"))
    held.go.clear()
    guesses = [
        asyncio.create_task(passwords.match(USERS, b"alice", b"guess", network(f"guesser {number % 8}")))
        for number in range(100)
    ]
    while held.running < module.RUNNING:
        await asyncio.sleep(0)
    # No check ends before `go` is set, so a match that waited for a check would not return.
    for _ in range(100):
        assert await passwords.match(USERS, b"alice", b"secret", network("scraper"))
    assert held.running == module.RUNNING
    held.go.set()
    assert set(await asyncio.gather(*guesses)) == {False}
    assert held.most == module.RUNNING
    assert held.names == {"password"}


@in_a_loop
async def test_networks_take_turns(passwords: Passwords, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a right password of one network, those are checked that run, and one of each other network."""
    checked: list[bytes] = []

    def checkpw(password: bytes, _: bytes) -> bool:
        checked.append(password)
        return False

    monkeypatch.setattr(bcrypt, "checkpw", checkpw)
    guesses = [
        asyncio.create_task(passwords.match(USERS, b"alice", b"guess", network(f"guesser {number % 3}")))
        for number in range(120)
    ]
    await asyncio.sleep(0)
    await passwords.match(USERS, b"alice", b"secret", network("scraper"))
    assert checked.index(b"secret") <= module.RUNNING + 3
    assert set(await asyncio.gather(*guesses)) == {False}
    assert len(checked) == 121
    assert not passwords._turns._waiting
    assert passwords._turns._running == 0


@in_a_loop
async def test_of_clients_that_have_gone_nothing_is_checked(passwords: Passwords, held: Held) -> None:
    def check(is_gone: bool) -> asyncio.Task[bool]:
        return asyncio.create_task(passwords.match(USERS, b"alice", b"secret", network("a"), lambda: is_gone))

    running = [check(False) for _ in range(module.RUNNING)]
    gone = [check(True) for _ in range(50)]
    cancelled, last = check(False), check(False)
    await asyncio.sleep(0)
    cancelled.cancel()
    held.go.set()
    assert set(await asyncio.gather(*gone)) == {False}
    assert set(await asyncio.gather(*running, last)) == {True}
    assert held.checks == module.RUNNING + 1
    assert passwords._turns._running == 0


def test_a_check_that_takes_for_ever_holds_up_no_end(passwords: Passwords, held: Held) -> None:
    """At a cost of 31 a check takes a day: neither the loop nor the process waits for it."""

    async def work() -> None:
        before = threading.enumerate()  # a thread of another test may still be running
        task = asyncio.create_task(passwords.match(USERS, b"alice", b"secret", network("a")))
        while not held.running:
            await asyncio.sleep(0)
        (thread,) = [thread for thread in threading.enumerate() if thread not in before]
        assert (thread.name, thread.daemon) == ("password", True)
        task.cancel()

    asyncio.run(work())
    held.go.set()
    for thread in threading.enumerate():
        if thread.name == "password":
            thread.join(patience(10))  # its result goes to a loop that is closed
