"""Errors by name; those that user space sees are the C library's."""

import errno as c

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels.errno import NAMES, decode, name_of
from kprobe_exporter.model.values import MAX_ERRNO, Value


@pytest.mark.parametrize("name", [name for name in vars(c) if name.startswith("E")])
def test_the_c_library_has_the_same_names(name: str) -> None:
    ours = name_of(getattr(c, name))
    assert ours is not None
    assert getattr(c, ours) == getattr(c, name)


def test_the_c_library_knows_all_that_user_space_sees() -> None:
    strangers = {name for number, name in NAMES.items() if number < 512 and number not in c.errorcode}
    assert strangers <= {"EHWPOISON"}


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (1, "EPERM"),
        (2, "ENOENT"),
        (22, "EINVAL"),
        (35, "EDEADLK"),
        (95, "EOPNOTSUPP"),
        (133, "EHWPOISON"),
        (512, "ERESTARTSYS"),
        (516, "ERESTART_RESTARTBLOCK"),
        (519, "ENOPARAM"),
        (521, "EBADHANDLE"),
        (524, "ENOTSUPP"),
        (529, "EIOCBQUEUED"),
        (531, "ENOGRACE"),
        *((number, None) for number in (-2, 0, 41, 58, 134, 520, 532)),
    ],
)
def test_names(number: int, name: str | None) -> None:
    assert name_of(number) == name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((value, "ENOENT") for value in (-2, 2**64 - 2)),
        *((value, "ok") for value in (0, 1, 2**32 - 2, 2**32, 2**64 - MAX_ERRNO - 1)),
        *((value, None) for value in (-41, -MAX_ERRNO, -MAX_ERRNO - 1, None, b"-2")),
    ],
)
def test_values(value: Value, text: str | None) -> None:
    assert decode(value) == text


@given(st.integers(1, MAX_ERRNO))
def test_signed_and_unsigned_64_bits(number: int) -> None:
    assert decode(-number) == decode(2**64 - number) == name_of(number)
