"""Fixed names for single values."""

import pytest

from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model import Value

decoder = DECODERS["map"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "ok"),
        (-1, "failed"),
        (1, None),
        (b"0", None),
        (b"bash", "shell"),
        ("Größe".encode(), "5"),
        (b"\xff", None),
        (b"", "empty"),
        (None, None),
    ],
)
def test_values(value: Value, text: str | None) -> None:
    decode = decoder({0: "ok", -1: "failed", "bash": "shell", "Größe": 5, "": "empty"})
    assert decode(value) == text


def test_later_changes_of_the_options_do_not_matter() -> None:
    options = {0: "ok"}
    decode = decoder(options)
    options[0] = "changed"
    assert decode(0) == "ok"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (None, "wants a mapping"),
        ({}, "wants a mapping"),
        ([0, "ok"], "wants a mapping"),
        ("ok", "wants a mapping"),
        ({True: "ok"}, "numbers and strings as keys, not True"),
        ({1.5: "ok"}, "numbers and strings as keys, not 1.5"),
        ({None: "ok"}, "numbers and strings as keys, not None"),
        ({0: None}, "a name for 0, not None"),
        ({0: True}, "a name for 0, not True"),
        ({0: ["ok"]}, "a name for 0"),
    ],
)
def test_what_is_refused(options: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        decoder(options)
