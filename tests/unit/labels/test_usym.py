"""usym: the text that was found for an address; nothing else is decoded."""

import pytest

from kprobe_exporter.labels import usym


def test_names() -> None:
    decode = usym.decoder(None)
    assert decode(b"libc.so.6`malloc") == "libc.so.6`malloc"
    assert decode(b"[unknown]") == "[unknown]"
    assert decode(0x1000) is None
    assert decode(None) is None


def test_it_takes_no_options() -> None:
    with pytest.raises(ValueError, match="usym"):
        usym.decoder({"offset": True})
