"""Symbols of addresses, and texts that the kernel already printed as a symbol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels.ksym import decoder, decoder_with
from kprobe_exporter.model.values import Value

READ = 0xFFFFFFFF81234560
WITH_OFFSET = {"offset": True}


def resolve(address: int) -> bytes | None:
    """Return the symbol, or the address in hexadecimal, as symbols.addresses.Symbols.text does."""
    if READ <= address < READ + 0x1A0:
        return b"vfs_read+0x%x/0x1a0" % (address - READ)
    return b"ext4_sync+0x4/0x10 [ext4]" if address == 0xFFFFFFFFC0000004 else b"0x%x" % address


@pytest.mark.parametrize(
    ("value", "plain", "with_offset"),
    [
        (READ, "vfs_read", "vfs_read+0x0"),
        (READ + 16, "vfs_read", "vfs_read+0x10"),
        (READ + 16 - 2**64, "vfs_read", "vfs_read+0x10"),
        (b"0xffffffff81234570", "vfs_read", "vfs_read+0x10"),
        (b"%d" % READ, "vfs_read", "vfs_read+0x0"),
        (0xFFFFFFFFC0000004, "ext4_sync", "ext4_sync+0x4"),
        *((value, None, None) for value in (0, 2**64, None)),
        (b"vfs_read+0x10/0x1a0", "vfs_read", "vfs_read+0x10"),
        (b"vfs_read+0x10", "vfs_read", "vfs_read+0x10"),
        (b"vfs_read", "vfs_read", "vfs_read"),
        (b"f.isra.0+0x0/0x10 [nf_tables]", "f.isra.0", "f.isra.0+0x0"),
        (b"f+0x1/0x2 [ext4 0a1b2c]", "f", "f+0x1"),
        *((text, None, None) for text in (b"vfs_read+16", b"vfs_read+0x10/0x1a0\n", b"a b", b"x" * 600, b"")),
        *((number, None, None) for number in (b"00000000abcdef12", b"99999999999999999999")),
    ],
)
def test_values(value: Value, plain: str | None, with_offset: str | None) -> None:
    assert decoder_with(resolve)(None)(value) == plain
    assert decoder_with(resolve)({"offset": False})(value) == plain
    assert decoder_with(resolve)(WITH_OFFSET)(value) == with_offset


def test_without_a_resolver_text_is_still_decoded() -> None:
    assert decoder(None)(READ) is None
    assert decoder(None)(b"vfs_read+0x10/0x1a0") == "vfs_read"


@pytest.mark.parametrize(
    "options",
    [{}, {"offset": 1}, {"offset": "true"}, {"offset": None}, {"offset": True, "size": True}, "offset", True],
)
def test_refused(options: object) -> None:
    with pytest.raises(ValueError, match=r"no option but offset: write 'decode: ksym', or \{ksym: "):
        decoder(options)


@given(st.integers() | st.binary() | st.from_regex(rb"\w+(\+0x[0-9a-f]+)?(/0x1)?( \[\w+\])?"))
def test_any_value(value: int | bytes) -> None:
    for options in (None, WITH_OFFSET):
        text = decoder_with(resolve)(options)(value)
        assert text is None or (text.isprintable() and text.isascii() and len(text) <= 530)


@given(st.binary())
def test_whatever_the_resolver_gives(answer: bytes) -> None:
    text = decoder_with(lambda address: answer)(None)(1)
    assert text is None or text.isprintable()
