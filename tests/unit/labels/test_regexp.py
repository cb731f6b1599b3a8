"""labels.regexp: group 1 of a pattern; patterns on which a hostile text could stall the agent are refused."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.regexp import LONGEST, SHORTEST, decoder
from kprobe_exporter.model.values import Value
from tests.support.patience import patience

LENGTHS = [SHORTEST << doubled for doubled in range(6)]
"""Of texts, up to LONGEST: a pattern may be limited to any of them."""

WORST = 0.5
"""Seconds of CPU time, which other load does not add to, for the text that takes a pattern longest."""


@pytest.mark.parametrize(
    ("pattern", "value", "text"),
    [
        (r"^(\w+)", b"kworker/0:1", "kworker"),
        (r"([^/]+)$", b"/usr/bin/cat", "cat"),
        (r"^/(?:proc|sys)/(\d+)", b"/proc/17/maps", "17"),
        (r"^/(?:proc|sys)/(\d+)", b"/dev/null", None),
        (r"^(a)|b", b"b", None),
        (r"(?i)^(?P<word>LINUX)", b"linux", "linux"),
        (r"^(\w+)-(\w+)-(\w+)", b"one-two-three", "one"),
        (r"^https?://([^/]+)/", b"http://host/x", "host"),
        (r"^(-?\d)", -22, "-2"),
        (r"^(.*)$", "Größe".encode(), "Größe"),
        (r"^(.*)$", b"a\xff", r"a\xff"),
        (r"^(\w*)", b" ", ""),
        (r"^(a*)", b"a" * LONGEST, "a" * LONGEST),
        (r"^(a*)", b"a" * (LONGEST + 1), None),
        (r"([^/]+)$", b"/long" * 200 + b"/postgres-backup", "postgres-backup"),
        (r"([^/]+)$", b"/" * 1024, None),
        (r"b(c)", b"a" * (LONGEST - 2) + b"bc", "c"),
        (r"^(\w*)\w*\w*$", b"a" * SHORTEST, "a" * SHORTEST),
        (r"^(\w*)\w*\w*$", b"a" * (SHORTEST + 1), None),
        (r"^(.*)", None, None),
    ],
)
def test_values(pattern: str, value: Value, text: str | None) -> None:
    assert decoder(pattern)(value) == text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (None, "wants a pattern with a group"),
        ("", "has no group"),
        (r"^\w+$", "has no group"),
        (r"(?:a)", "has no group"),
        (5, "wants a pattern with a group"),
        (["(a)"], "wants a pattern with a group"),
        ("(a" + "b" * 198 + ")", "at most 200 characters, this one 201"),
        ("(a", r"is no regular expression: missing \), unterminated subpattern"),
        ("(?\u200e)", r"is no regular expression: unknown extension \?\\u200e"),
        ("(a{9999999999})", "is too large"),
        (r"(a)\1", "looks neither ahead nor back"),
        (r"(?=a)(b)", "looks neither ahead nor back"),
        (r"(?<!a)(b)", "looks neither ahead nor back"),
        (r"(?>a+)(b)", "looks neither ahead nor back"),
        (r"(a)?(?(1)b|c)", "looks neither ahead nor back"),
        # Exponential time, each for another reason.
        (r"^(a+)+$", "could take too long"),
        (r"^(a|a)*$", "could take too long"),
        (r"^(a|ab|b)+$", "could take too long"),
        (r"^((a?){20})+b", "could take too long"),
        (r"^(?:a?){40}(a{40})", "could take too long"),
        (r"^(" + "a?" * 40 + "a" * 40 + ")", "could take too long"),
        (r"^(" + "(?:a|a)" * 25 + ")b", "could take too long"),
        # Polynomial time of too high a degree.
        (r"^(\w*)\w*\w*\w*$", "could take too long"),
        (r"(\w*)\w*\w*$", "could take too long"),
        (r"(?m)^(\w*)\w*\w*$", "could take too long"),
        (r".*.*.*(x)", "could take too long"),
    ],
)
def test_refused(options: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        decoder(options)


@pytest.mark.parametrize("pattern", [r"^(\w*)\w*\w*$", r"(\w+)\w+!", r"^(a*?)a*?a*?b", r"((?:ab?c?){1})x"])
def test_the_worst_that_is_taken_is_bounded(pattern: str) -> None:
    decode, begin = decoder(pattern), time.thread_time()
    for length in LENGTHS:
        assert decode(b"a" * (length - 1) + b"-") is None
    assert time.thread_time() - begin < patience(WORST)


PARTS = st.lists(
    st.sampled_from(["a", "b", ".", "(", ")", "(?:", "|", "*", "+", "?", "{2}", "{3,}", "[ab]", "^", "$"]),
    max_size=14,
)


@given(PARTS)
def test_whatever_is_taken_is_fast(parts: list[str]) -> None:
    """Each accepted pattern is fast on texts that fail at their end, where the matcher tries everything."""
    try:
        decode = decoder("".join(parts))
    except ValueError:
        return
    begin = time.thread_time()
    for length in LENGTHS:
        decode(b"a" * (length - 1) + b"-")
        decode(b"ab" * (length // 2 - 1) + b"-")
    assert time.thread_time() - begin < patience(WORST)


@given(st.text(max_size=30))
def test_any_pattern_is_a_decoder_or_a_sentence(text: str) -> None:
    try:
        decoder(text)
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017


def test_it_is_the_pattern_as_python_has_it() -> None:
    assert decoder(r"^(\d+)\.(\d+)")(b"6.12") == re.match(r"^(\d+)", "6.12")[1]  # type: ignore[index]


@pytest.mark.parametrize(
    ("steps", "value", "text"),
    [
        ([("regexp", r"^(\w+)"), ("map", {"kworker": "kernel"})], b"kworker/0:1", "kernel"),
        ([("hex", None), ("map", {"0x10": "flag"})], 16, "flag"),
        ([("hex", None), ("regexp", "^0x(.)")], 0xAB, "a"),
        ([("errno", None), ("regexp", "^E(.*)")], -2, "NOENT"),
        # A decoder gives text, so the key "5" is taken and not the key 5.
        ([("regexp", r"(\d+)"), ("map", {"5": "five", 5: "no"})], b"tty5", "five"),
        ([("map", {1: "a"}), ("regexp", "(b)")], 1, None),
    ],
)
def test_chains(steps: list[tuple[str, object]], value: Value, text: str | None) -> None:
    """A series passes the text of one decoder to the next as bytes."""
    found: str | None = None
    for name, options in steps:
        found = DECODERS[name](options)(value)
        value = None if found is None else found.encode()
    assert found == text
