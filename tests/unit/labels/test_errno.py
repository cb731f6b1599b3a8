"""Errors by name; those that user space sees are the C library's."""

import errno as c

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels import DECODERS
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
        (41, None),
        (58, None),
        (95, "EOPNOTSUPP"),
        (133, "EHWPOISON"),
        (134, None),
        (512, "ERESTARTSYS"),
        (516, "ERESTART_RESTARTBLOCK"),
        (519, "ENOPARAM"),
        (520, None),
        (521, "EBADHANDLE"),
        (524, "ENOTSUPP"),
        (529, "EIOCBQUEUED"),
        (531, "ENOGRACE"),
        (532, None),
        (0, None),
        (-2, None),
    ],
)
def test_names(number: int, name: str | None) -> None:
    assert name_of(number) == name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-2, "ENOENT"),
        (2**32 - 2, "ENOENT"),
        (2**64 - 2, "ENOENT"),
        (0, "ok"),
        (1, "ok"),
        (2**32, "ok"),
        (2**64 - MAX_ERRNO - 1, "ok"),
        (-41, None),
        (-MAX_ERRNO, None),
        (-MAX_ERRNO - 1, None),
        (None, None),
        (b"-2", None),
    ],
)
def test_values(value: Value, text: str | None) -> None:
    assert decode(value) == text


@given(st.integers(1, MAX_ERRNO))
def test_the_width_does_not_matter(number: int) -> None:
    assert decode(-number) == decode(2**32 - number) == decode(2**64 - number) == name_of(number)


def test_it_takes_no_options() -> None:
    assert DECODERS["errno"](None) is decode
    for options in ({}, {1: "x"}, "x", False):
        with pytest.raises(ValueError, match="takes no options"):
            DECODERS["errno"](options)
