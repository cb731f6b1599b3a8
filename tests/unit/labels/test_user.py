"""Users by name, from a file like /etc/passwd that changes; for this machine the C library is the oracle."""

import os
import pwd
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels.user import LONGEST_NAME, LOOK_PAUSE, MOST_BYTES, UNSET, decoder
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value

PASSWD = b"""\
root:x:0:0:root:/root:/bin/bash
toor:x:0:0:another root:/root:/bin/sh
daemon:x:1:1::/usr/sbin:/usr/sbin/nologin
alice::1000:1000:Alice,,,:/home/alice:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
# hash:x:2000:0:::
+nis:x:2001:0:::
-nis:x:2002:0:::
:x:2003:0:::
no-number:x:2004x:0:::
short:x:2005
negative:x:-1:0:::
huge:x:99999999999:0:::
invalid:x:4294967295:0:::
b\xf6b:x:2006:0:::
\x1b[31mred:x:2007:0:::
""" + "\u202eevil:x:2008:0:::\nGrößer:x:2009:0:::\nlast:x:2010:0:::".encode()


class World:
    """A file of users, and a clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 0.0

    def decoder(self) -> Decoder:
        return decoder(None, self.path, lambda: self.now)


@pytest.fixture
def world(tmp_path: Path) -> World:
    path = tmp_path / "passwd"
    path.write_bytes(PASSWD)
    return World(path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "root"),
        (1, "daemon"),
        *((value, "alice") for value in (1000, b"1000", b"0x3e8")),
        (65534, "nobody"),
        *((uid, str(uid)) for uid in (3000, *range(2000, 2006))),
        (2006, r"b\xf6b"),
        (2007, r"\x1b[31mred"),
        (2008, r"\u202eevil"),
        (2009, "Größer"),
        (2010, "last"),
        *((value, "unset") for value in (UNSET, -1, b"4294967295")),
        (-2, "4294967294"),
        *((value, None) for value in (2**32, 2**64 - 1, b"alice", None)),
    ],
)
def test_values(value: Value, text: str | None, world: World) -> None:
    assert world.decoder()(value) == text


def test_the_machine_s_own() -> None:
    decode = decoder(None)
    with open("/etc/passwd", "rb") as passwd:
        uids = [int(line.split(b":")[2]) for line in passwd if line[:1] not in b"+-#\n"]
    assert uids
    for uid in uids:
        assert decode(uid) == pwd.getpwuid(uid).pw_name


def test_a_change_is_seen_after_a_while(world: World) -> None:
    decode = world.decoder()
    assert decode(1000) == "alice"
    world.path.write_bytes(b"bob:x:1000:1000:::\n")
    world.now = LOOK_PAUSE - 0.1
    assert (decode(1000), decode(0)) == ("alice", "root")
    world.now = LOOK_PAUSE
    assert (decode(1000), decode(0)) == ("bob", "0")
    world.path.unlink()
    world.now = 2 * LOOK_PAUSE
    assert decode(1000) == "1000"
    world.path.write_bytes(PASSWD)
    assert decode(1000) == "1000"
    world.now = 3 * LOOK_PAUSE
    assert decode(1000) == "alice"


def test_a_file_that_did_not_change_is_not_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = world.decoder()
    decode(0)
    monkeypatch.setattr(Path, "open", None)
    world.now = LOOK_PAUSE
    assert decode(0) == "root"


def test_a_file_that_would_block_is_not_opened(world: World) -> None:
    world.path.unlink()
    os.mkfifo(world.path)
    assert world.decoder()(0) == "0"


def test_what_is_read_is_bounded(world: World) -> None:
    with world.path.open("wb") as passwd:
        passwd.write(b"first:x:1:0:::\nx:" + b"x" * MOST_BYTES + b":2:0:::\nlast:x:3:0:::\n")
    decode = world.decoder()
    assert [decode(uid) for uid in (1, 2, 3)] == ["first", "2", "3"]


@pytest.mark.parametrize(("length", "kept"), [(LONGEST_NAME, True), (LONGEST_NAME + 1, False)])
def test_a_name_is_bounded(length: int, kept: bool, world: World) -> None:
    world.path.write_bytes(b"u" * length + b":x:5:0:::\n")
    assert world.decoder()(5) == ("u" * length if kept else "5")


@given(st.integers() | st.integers(-1, 2**32) | st.binary())
def test_any_value(value: int | bytes) -> None:
    text = decoder(None)(value)
    assert text is None or (text.isprintable() and 0 < len(text) <= 4 * LONGEST_NAME)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=100))
def test_any_file(uid: int, name: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(name + b":x:%d:0:::\n" % uid)
        file.flush()
        text = decoder(None, Path(file.name))(uid)
    assert text
    assert text.isprintable()
