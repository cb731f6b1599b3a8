"""config.yaml_source: values with their places, and the texts that are refused."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.config.yaml_source import MAX_DEPTH, MAX_EVENTS, Report, YamlSource
from kprobe_exporter.errors import ConfigError
from tests.support.patience import patience


def refused(content: bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        YamlSource("f", content)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("12", 12),
        ("0x1f", 31),
        ("0o17", 15),
        ("017", 17),
        *((text, text) for text in ("-0x1f", "1_000", "1:20", "2020-01-01", "=", "<<")),
        *((text, text) for text in ("on", "off", "yes", "no")),
        ("true", True),
        ("False", False),
        *((text, None) for text in ("null", "~", "")),
        ("'true'", "true"),
        ('"1"', "1"),
        (".inf", math.inf),
        ("-.Inf", -math.inf),
        ("9" * 5000, math.inf),
    ],
)
def test_scalars_of_yaml_1_2(text: str, value: object) -> None:
    found = YamlSource("f", f"a: {text}".encode()).data["a"]
    assert found == value
    assert type(found) is type(value)


def test_nan() -> None:
    assert math.isnan(YamlSource("f", b"a: .nan").data["a"])


def test_keys_keep_their_types() -> None:
    assert YamlSource("f", b"{0: a, x: b, 1.5: c}").data == {0: "a", "x": "b", 1.5: "c"}


TEXT = b"""\
probes:
  - name: abc
    filter: "x > 1"
    fetch:
      a: $arg1
    attach: [one, {to: two}]
"""


@pytest.mark.parametrize(
    ("path", "column", "at_key", "expected"),
    [
        (("probes", 0), 0, False, "2:5: probes[0]"),
        (("probes", 0, "name"), 0, False, "2:11: probes[0].name"),
        (("probes", 0, "name"), 0, True, "2:5: probes[0].name"),
        (("probes", 0, "name"), 2, False, "2:13: probes[0].name"),
        (("probes", 0, "filter"), 0, False, "3:13: probes[0].filter"),
        (("probes", 0, "filter"), 2, False, "3:16: probes[0].filter"),
        # A problem of a list or a mapping points at its key.
        (("probes", 0, "fetch"), 0, False, "4:5: probes[0].fetch"),
        (("probes", 0, "attach", 1), 0, False, "6:19: probes[0].attach[1]"),
        (("probes", 0, "attach", 1, "to"), 1, False, "6:25: probes[0].attach[1].to"),
        # A problem of a missing value points at what encloses it.
        (("probes", 0, "help"), 0, False, "2:5: probes[0].help"),
        (("nothing",), 0, False, "1:1: nothing"),
    ],
)
def test_places(path: tuple[str | int, ...], column: int, at_key: bool, expected: str) -> None:
    problem = YamlSource("f", TEXT).problem(path, "m", column=column, at_key=at_key)
    assert str(problem) == f"f:{expected}: m"


def test_columns_are_not_counted_through_escapes_and_folds() -> None:
    source = YamlSource("f", b'a: "x\\ty"\nb: >-\n  abc\n')
    assert str(source.problem(("a",), "m", column=2)) == "f:1:4: a: m"
    assert str(source.problem(("b",), "m", column=2)) == "f:2:4: b: m"


def test_columns_count_characters() -> None:
    assert YamlSource("f", "{é: ü, b: [1]}".encode()).problem(("b", 0), "m").column == 12


def test_resolve_leaves_out_what_is_not_in_the_text() -> None:
    source = YamlSource("f", TEXT)
    loc = ("probes", 0, "attach", "<list>", 1, "<mapping>", "to")
    assert source.resolve(loc) == ("probes", 0, "attach", 1, "to")
    assert source.data["probes"][0]["attach"][1]["to"] == "two"
    assert Report(source, ("probes", 0), [], []).where(("filter",)) == "f:3"


def test_the_first_of_a_duplicate_key_counts() -> None:
    source = YamlSource("f", b"a: 1\nb: 2\na: {x: [3]}\n'b': 4\n")
    assert source.data == {"a": 1, "b": 2}
    assert [str(problem) for problem in source.readable] == [
        "f:3:1: a: this key is there already, in line 1: keep one",
        "f:4:1: b: this key is there already, in line 2: keep one",
    ]
    assert source.problem(("a",), "m").line == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "1:1: (file): the file is empty: it needs `probes:`"),
        (b"# only a comment\n", "1:1: (file): the file is empty: it needs `probes:`"),
        (b"a: \xff", "1:4: (file): this is not UTF-8: byte 0xff"),
        (b"\xff\xfea\0", "1:1: (file): this is not UTF-8: byte 0xff"),
        (b"a: 1\nb: \0", "2:4: (file): the control character 0x00 has no place in a text file"),
        (b"\x7fELF", "1:1: (file): the control character 0x7f has no place in a text file"),
        (rb'a: "\0"', r"1:4: a: the control character '\x00' has no place here"),
        (rb'a: "\u2028"', r"1:4: a: the control character '\u2028' has no place here"),
        (rb'a: "\ud800"', r"1:4: a: the control character '\ud800' has no place here"),
        (rb'a: "\UFFFFFFFF"', r"1:1: (file): not valid YAML: a \U escape"),
        (b"%YAML 1." + b"9" * 5000 + b"\n---\na: 1", "1:1: (file): not valid YAML: a"),
        (b"a: &x 1", "1:4: a: anchors (&) are not read: write the value out"),
        (b"*x : 1", "1:1: (file): aliases (*) are not read"),
        (b"a: !!python/object:os.system {}", "1:4: a: tags (!) are not read"),
        (b"a: !x b", "1:4: a: tags (!) are not read"),
        (b"a: 1\n---\nb: 1", "2:1: (file): a second document starts here"),
        (b"? [a]\n: b", "1:3: (file): a key must be a plain word or number"),
        (b"~: 1", "1:1: (file): a key is missing before the colon"),
        (b"a: %di", "1:4: (file): not valid YAML, found character '%' that cannot start any"),
        (b"a: b: c", "1:5: (file): not valid YAML, mapping values are not allowed here: put a"),
        (
            b"a:\n\tb: c",
            "2:1: (file): not valid YAML, found character '\\t' that cannot start any token: indent",
        ),
        (b"a: [1, 2", "1:9: (file): not valid YAML, expected ',' or ']', but got '<stream end>'"),
        (b'a: "b', "1:6: (file): not valid YAML, found unexpected end of stream: the file seems"),
        (b"a: 1\nb", "2:2: (file): not valid YAML, could not find expected ':': a key needs"),
    ],
)
def test_refused(content: bytes, expected: str) -> None:
    [problem] = refused(content)
    assert problem.startswith(f"f:{expected}")


def test_a_bomb_of_aliases_is_refused_at_its_first() -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{i}: [*a{i - 1}, *a{i - 1}]" for i in range(1, 50))]
    first, second = refused("\n".join(lines).encode())
    assert "anchors" in first
    assert "aliases" in second


@pytest.mark.parametrize("opening", [b"[", b"{a: ", b"- ", b"? ", b"[\n"])
def test_depth_is_bounded(opening: bytes) -> None:
    [problem] = refused(opening * 50_000)
    assert f"nested deeper than {MAX_DEPTH} levels" in problem or "plain word" in problem


def test_what_is_deep_enough_is_read() -> None:
    found = YamlSource("f", b"[" * MAX_DEPTH + b"]" * MAX_DEPTH).data
    for _ in range(MAX_DEPTH - 1):
        [found] = found
    assert found == []


def test_all_that_is_refused_is_told_at_once() -> None:
    found = refused(b'a: &x 1\nb: !!str 2\nc: "\\0"\na: 2\n')
    assert [problem[:4] for problem in found] == ["f:1:", "f:2:", "f:3:", "f:4:"]


@given(st.binary(max_size=200) | st.text("ab:-[]{}&*!#|>'\"%@`\n\t ,?1", max_size=60).map(str.encode))
def test_any_bytes_are_parsed_or_refused(content: bytes) -> None:
    try:
        YamlSource("f", content)
    except ConfigError as error:
        for problem in error.problems:
            assert problem.line >= 1
            assert problem.column >= 1
            assert str(problem).isprintable()


MIB = 1 << 20
"""The largest configuration."""


@pytest.mark.parametrize(
    "text", [b"[" + b"a," * (MIB // 2 - 1) + b"]", b"- \n" * (MIB // 3), b"a: 1\n" * (MIB // 5)]
)
def test_a_file_of_many_small_values(text: bytes) -> None:
    """1 MiB of list elements took 27 s to parse, and up to 1 GB to be checked."""
    begun = time.thread_time()
    *_, last = refused(text)
    assert last.endswith(f"more than {MAX_EVENTS:,} keys and values: split the file into several")
    assert time.thread_time() - begun < patience(6)


def test_as_many_values_as_a_file_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.config.yaml_source.MAX_EVENTS", 100)
    around = 6  # the stream, the document and the list, each with its end
    assert len(YamlSource("f", b"[" + b"a," * (100 - around) + b"]").data) == 100 - around
    assert "more than 100 keys and values" in refused(b"[" + b"a," * (101 - around) + b"]")[0]
