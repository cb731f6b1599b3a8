"""name: words that the aggregator put in place of numbers, and enums; other numbers stay numbers."""

import pytest

from kprobe_exporter.labels.name import decoder, decoder_with
from kprobe_exporter.model.values import Value

ENUMS = {"state": {0: "OFF", 1: "ON", -1: "BROKEN"}}


@pytest.mark.parametrize(
    ("value", "shown"), [(b"NO_SOCKET", "NO_SOCKET"), (b"S|D", "S|D"), (7, "7"), (-1, "-1"), (None, None)]
)
def test_words_are_kept_and_numbers_stay_numbers(value: Value, shown: str | None) -> None:
    assert decoder(None)(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1, "ON"), (b"1", "ON"), (b"0x1", "ON"), (2**32 - 1, "BROKEN"), (-1, "BROKEN"), (9, "9"), (None, None)],
)
@pytest.mark.parametrize("name", ["state", "enum state"])
def test_a_named_enum(name: str, value: Value, shown: str | None) -> None:
    decode = decoder_with(lambda enum: ENUMS.get(enum, {}))({"enum": name})
    assert decode(value) == shown


def test_an_enum_that_this_kernel_lacks_leaves_numbers() -> None:
    assert decoder({"enum": "no_such"})(1) == "1"


@pytest.mark.parametrize(
    "options", ["state", {"enum": 1}, {"enum": "a b"}, {"enum": ""}, {"of": "state"}, []]
)
def test_other_options_are_refused(options: object) -> None:
    with pytest.raises(ValueError, match="takes no option but an enum"):
        decoder(options)
