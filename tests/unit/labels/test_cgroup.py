"""The path of a cgroup as a label: unchanged, and on one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels.cgroup import decode
from kprobe_exporter.model.values import Value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"/", "/"),
        (b"/system.slice/cron.service", "/system.slice/cron.service"),
        (b"/caf\xc3\xa9", "/café"),
        (b"/a\xff\x1b[", "/a\\xff\\x1b["),
        (b"", ""),
        *((value, None) for value in (7, None)),
    ],
)
def test_values(value: Value, text: str | None) -> None:
    assert decode(value) == text


@given(st.binary(max_size=60))
def test_any_path_is_one_line(path: bytes) -> None:
    text = decode(path)
    assert text is not None
    assert text.isprintable()
