"""labels.process: facts as text; names and paths without characters that do not print."""

import pytest

from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.specs import OF_PROCESS
from kprobe_exporter.model.values import Value


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ppid", 7, "7"),
        ("uid", 0, "0"),
        ("exe", b"/bin/\x1b[31m\nx", r"/bin/\x1b[31m\nx"),
        ("argv", b"a \xff", r"a \xff"),
        ("parent_comm", b"", ""),
        ("exit_code", 137, "137"),
        ("exit_signal", 0, "0"),
        ("exit_code", None, None),
        ("age", 1_234_567_890, "1.235"),
        ("exe", None, None),
        ("age", None, None),
    ],
)
def test_text(name: str, value: Value, text: str | None) -> None:
    assert DECODERS[name](None)(value) == text


@pytest.mark.parametrize("name", sorted(OF_PROCESS))
def test_no_options(name: str) -> None:
    with pytest.raises(ValueError, match=f"the decoder {name} takes no options"):
        DECODERS[name]("short")
