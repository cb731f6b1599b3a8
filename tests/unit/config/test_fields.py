"""config.fields: sizes, buckets, and the names that may be used."""

import pytest

from kprobe_exporter.config.fields import bounds
from kprobe_exporter.config.schema import GlobalModel
from tests.unit.config.conftest import PROBE, Load, Problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1MiB", 1 << 20),
        ("512 KiB", 512 << 10),
        ("2GiB", 2 << 30),
        ("8192B", 8192),
        ("8192", 8192),
        (8192, 8192),
    ],
)
def test_sizes(text: object, expected: int) -> None:
    assert GlobalModel.model_validate({"buffer_size": text}).buffer_size == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1MB", "'1MB' is not a size: write it as 512KiB, 1MiB or 2GiB"),
        ("MiB", "'MiB' is not a size"),
        ("1.5MiB", "'1.5MiB' is not a size"),
        ("-1", "must be at least 4096"),
        ("0", "must be at least 4096"),
        ("9999GiB", "must be at most 1099511627776"),
        ("true", "must be a whole number, and not true"),
        ("1e6", "must be a whole number, and not 1000000.0"),
        (r'"\u0661MiB"', "is not a size"),
    ],
)
def test_bad_sizes(problems: Problems, text: str, sentence: str) -> None:
    [problem] = problems(f"{PROBE}global: {{buffer_total: {text}}}")
    assert problem.startswith("2:24: global.buffer_total: ")
    assert sentence in problem


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15m", 900),
        ("90s", 90),
        ("1h", 3600),
        ("2 d", 172800),
        ("500ms", 0.5),
        ("0", 0),
        ("0s", 0),
        ("60", 60),
        ("0.5", 0.5),
    ],
)
def test_durations(config: Load, text: str, seconds: float) -> None:
    found = config(f"{PROBE}global: {{series_ttl: {text}}}").settings.series_ttl
    assert (found, type(found)) == (seconds, float)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("15 min", "'15 min' is not a duration: write it as 500ms, 90s, 15m or 1h"),
        ("1h30m", "'1h30m' is not a duration"),
        ("1.5h", "'1.5h' is not a duration"),
        ("-1", "must be at least 0"),
        ("-1s", "'-1s' is not a duration"),
        ("never", "'never' is not a duration"),
        ("true", "must be a number, and not true"),
        (".inf", "must be at most 1000000000.0"),
        (".nan", "must be at least 0"),
        ("99999d", "must be at most 1000000000.0"),
    ],
)
def test_bad_durations(problems: Problems, text: str, sentence: str) -> None:
    [problem] = problems(f"{PROBE}global: {{series_ttl: {text}}}")
    assert problem.startswith("2:22: global.series_ttl: ")
    assert sentence in problem


BUCKETS = "probes: [{{name: p, attach: 'kretprobe:f', return_buckets: {}}}]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[0.001, 1, 1e3]", (0.001, 1.0, 1000.0)),
        ("[-1, 0]", (-1.0, 0.0)),
        ("{linear: {start: 0, width: 5, count: 3}}", (0.0, 5.0, 10.0)),
        ("{linear: {start: 0.7, width: 0.1, count: 3}}", (0.7, 0.8, 0.9)),
        ("{exp2: {min: 1e-6, count: 3}}", (1e-6, 2e-6, 4e-6)),
        ("{exp2: {min: 1, count: 1}}", (1.0,)),
    ],
)
def test_buckets(config: Load, text: str, expected: tuple[float, ...]) -> None:
    assert config(BUCKETS.format(text)).probes[0].return_buckets == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "buckets are empty: write at least one bound"),
        ("[1, 1]", "buckets must rise: 1 comes after 1"),
        ("[3, 2]", "buckets must rise: 2 comes after 3"),
        ("[1, .nan]", "[1]: must be a finite number"),
        ("[1, .inf]", "[1]: must be a finite number; a histogram has its +Inf by itself"),
        ("[1, '2']", "[1]: must be a number, and not the text '2'"),
        ("[true]", "[0]: must be a number, and not true"),
        (f"[{'9' * 400}]", "[0]: must be a"),
        (f"{[*range(201)]}", "is too long: 200 are the most"),
        ("5", "buckets are a list of numbers, a rule"),
        ("{}", "write linear: {start, width, count} or exp2: {min, count}"),
        ("{exp3: {}}", "unknown key 'exp3', did you mean 'exp2'?"),
        ("{exp2: {min: 1, count: 2}, linear: {start: 1, width: 1, count: 2}}", "write linear:"),
        ("{exp2: {min: 0, count: 2}}", "exp2.min: must be more than 0"),
        ("{exp2: {min: 1, count: 0}}", "exp2.count: must be at least 1"),
        ("{exp2: {min: 1, count: 1000000000}}", "exp2.count: must be at most 200"),
        ("{exp2: {min: 1e300, count: 200}}", "grow beyond the largest number"),
        ("{linear: {start: 1, width: 0, count: 2}}", "linear.width: must be more than 0"),
        ("{linear: {start: 1e300, width: 1, count: 2}}", "buckets must rise"),
        ("{linear: {start: 1, width: 1}}", "linear.count: the key 'count' is missing"),
    ],
)
def test_bad_buckets(problems: Problems, text: str, sentence: str) -> None:
    found = problems(BUCKETS.format(text))
    assert found[0].split(": ")[1].startswith("probes[0].return_buckets")
    assert sentence in found[0]


def test_bounds_are_floats() -> None:
    assert [type(one) for one in bounds([1, 2])] == [float, float]


@pytest.mark.parametrize("name", ["", "A", "1a", "a-b", "a" * 41, r"a\nb", "ä", r"a\n"])
def test_bad_probe_names(problems: Problems, name: str) -> None:
    [problem] = problems(f'probes: [{{name: "{name}", attach: kprobe:f}}]')
    assert problem.startswith("1:17: probes[0].name: ")
    assert "is not a name to use here: up to 40 of a-z, 0-9 and _, and no digit first" in problem


@pytest.mark.parametrize("key", ["namespace", "tracefs_instance"])
@pytest.mark.parametrize("name", ["", "1a", "a/b", "..", "a b", "a" * 41])
def test_bad_spaces(problems: Problems, key: str, name: str) -> None:
    [problem] = problems(f'{PROBE}global: {{{key}: "{name}"}}')
    assert f": global.{key}: " in problem
    assert "is not a name to use here" in problem


@pytest.mark.parametrize(
    ("decode", "sentence"),
    [
        ("erno", "there is no decoder 'erno', did you mean 'errno'?"),
        ("zzz", "there is no decoder 'zzz', there is age, argv, errno"),
        ("{errno: 3}", "errno takes no options"),
        ("[errno, map]", "decode[1]: map wants a mapping"),
        ("{errno: null, map: {}}", "a mapping of one key: {NAME: OPTIONS}"),
        ("{}", "a mapping of one key"),
        ("[]", "is empty: write at least one"),
        ("3", "decode is a decoder's name, {NAME: OPTIONS}, or a list of these"),
        ("[[errno]]", "a decoder is its name, or {NAME: OPTIONS}"),
        ("{1: x}", "must be text, and not 1"),
    ],
)
def test_bad_decoders(problems: Problems, decode: str, sentence: str) -> None:
    label = f"{{e: {{field: comm, decode: {decode}}}}}"
    [problem] = problems(
        f"probes: [{{name: p, attach: 'kprobe:f', metrics: [{{counter: a_total, labels: {label}}}]}}]"
    )
    assert ": probes[0].metrics[0].labels.e.decode" in problem
    assert sentence in problem
