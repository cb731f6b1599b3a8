"""labels.tcp_state: the words of the kernel's own tracepoint are the oracle."""

import re

import pytest

from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.tcp_state import NAMES, decode
from tests.support.kernel_formats import form


@pytest.mark.parametrize("kernel", ["5.10", "6.12"])
def test_words_of_the_tracepoint(kernel: str) -> None:
    text = " ".join(form(kernel, "sock/inet_sock_set_state").print_args)
    words = dict(re.findall(r"\{ (\d+), \"(TCP_\w+)\" \}", text))
    assert len(words) > 10
    assert {int(number): word for number, word in words.items()}.items() <= NAMES.items()


@pytest.mark.parametrize(
    ("value", "name"), [(1, "TCP_ESTABLISHED"), (b"10", "TCP_LISTEN"), (0, None), (14, None)]
)
def test_value(value: int | bytes, name: str | None) -> None:
    assert DECODERS["tcp_state"](None)(value) == decode(value) == name
