"""labels.regexp: group 1 of a pattern; no pattern and no text can stall the agent."""

import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.labels import DECODERS
from kprobe_exporter.labels.regexp import LARGEST, LONGEST, decoder
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value
from tests.support.patience import patience

WORST = 0.1
"""Seconds of CPU time, which other load does not add to, that one text may take. The most that was seen of a
pattern of LARGEST instructions was 0.03 s."""

LONG = b"a" * (LONGEST - 1) + b"-", b"ab" * (LONGEST // 2 - 1) + b"-"
"""Texts that fail at their end, where a matcher has tried everything."""


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
        (r"^(.*)$", rb"a\xff", r"a\x5cxff"),
        (r"^(.*)$", b"a\nb", r"a\nb"),
        (r"^(.*)$", rb"a\nb", r"a\x5cnb"),
        (r"^(.*)$", "\x9b".encode(), r"\u009b"),
        (r"(\C)", "é".encode(), r"\xc3"),
        (r"^(\w+)", "Größe".encode(), "Gr"),
        (r"^(\pL+)", "Größe".encode(), "Größe"),
        (r"^(\w*)", b" ", ""),
        (r"^(a*)", b"a" * LONGEST, "a" * LONGEST),
        (r"^(a*)", b"a" * (LONGEST + 1), None),
        (r"([^/]+)$", b"/long" * 200 + b"/postgres-backup", "postgres-backup"),
        (r"([^/]+)$", b"/" * LONGEST, None),
        (r"([^/]+)$", b"/" * (LONGEST - 1) + b"a", "a"),
        (r"^(.*)$", "é".encode() * (LONGEST // 2), "é" * (LONGEST // 2)),
        (r"b(c)", b"a" * (LONGEST - 2) + b"bc", "c"),
        (r"^(\w*)\w*\w*$", b"a" * LONGEST, "a" * LONGEST),
        (r"^(.*)", None, None),
    ],
)
def test_values(pattern: str, value: Value, text: str | None) -> None:
    assert decoder(pattern)(value) == text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        *((options, "wants a pattern with a group") for options in (None, 5, ["(a)"])),
        *((pattern, "has no group") for pattern in ("", r"^\w+$", r"(?:a)")),
        ("(a" + "b" * 198 + ")", "at most 200 characters, this one 201"),
        ("(a", r"of RE2, which looks neither ahead nor back: missing \): \(a"),
        ("(?\u200e)", r": invalid perl operator: \(\?\\u200e"),
        ("(a{9999})", "invalid repetition size"),
        (r"(a)\1", "looks neither ahead nor back: invalid escape sequence"),
        *(
            (pattern, "looks neither ahead nor back")
            for pattern in (r"(?=a)(b)", r"(?<!a)(b)", r"(?>a+)(b)", r"(a)?(?(1)b|c)")
        ),
        (r"(a{1000}b{1000})", "too large: {n,m} is compiled m times"),
        (r"(\pL{1000})", "too large"),
    ],
)
def test_refused(options: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        decoder(options)


def test_nothing_but_the_sentence_tells_of_a_refusal() -> None:
    """RE2 itself would write to stderr."""
    program = "from kprobe_exporter.labels.regexp import decoder\ntry: decoder('(a')\nexcept ValueError: pass"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stderr == b""


def seconds(decode: Decoder, text: bytes) -> float:
    """Return the CPU time of one text."""
    begin = time.thread_time()
    decode(text)
    return time.thread_time() - begin


@pytest.mark.parametrize(
    "pattern",
    [
        # With a matcher that backtracks these took 180 to 320 ms an event.
        r"^((?:a|a){23})b",
        r"^((?:a|aa){23})b",
        # Exponential time, each for another reason.
        r"^(a+)+$",
        r"^(a|a)*$",
        r"^(a|ab|b)+$",
        r"^((a?){20})+b",
        r"^(?:a?){40}(a{40})-$b",
        r"^(" + "a?" * 40 + "a" * 40 + ")b",
        # Polynomial time.
        r"^(\w*)\w*\w*\w*$",
        r"(\w*)\w*\w*$!",
        r"(?m)^(\w*)\w*\w*$",
        r".*.*.*(x)",
        r"^(a*?)a*?a*?b",
        # Many instructions, and more states than RE2 may keep.
        r"(a{1000})b",
        r"((?:a|b){100}(?:a?b?){100})x",
        r"(.*a.{100})$x",
    ],
)
def test_a_text_that_is_made_for_a_pattern_takes_bounded_time(pattern: str) -> None:
    decode = decoder(pattern)
    for text in (b"a" * 127, *LONG):
        assert seconds(decode, text) < patience(WORST)


PARTS = st.lists(
    st.sampled_from(["a", "b", ".", "(", ")", "(?:", "|", "*", "+", "?", "{2}", "{90}", "[ab]", "^", "$"]),
    max_size=14,
)


@given(PARTS)
def test_whatever_is_taken_is_fast(parts: list[str]) -> None:
    """Each accepted pattern is fast on texts that fail at their end."""
    try:
        decode = decoder("".join(parts))
    except ValueError:
        return
    for text in LONG:
        assert seconds(decode, text) < patience(WORST)


def test_a_pattern_may_count() -> None:
    import re2  # type: ignore[import-untyped]

    assert re2.compile(r"^(.{1,100})").programsize < LARGEST
    assert decoder(r"^(.{1,100})")(b"x" * 200) == "x" * 100


@given(st.text(max_size=30))
def test_any_pattern_is_a_decoder_or_a_sentence(text: str) -> None:
    try:
        decoder(text)
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017


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
