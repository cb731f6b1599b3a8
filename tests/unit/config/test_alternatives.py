"""config.alternatives: keys that replace each other, fetch arguments, filters, return values."""

from collections.abc import Callable

import pytest

from kprobe_exporter.config.values import Attach, Config
from tests.unit.config.conftest import marked


def attached(config: Callable[[str], Config], rest: str) -> tuple[Attach, ...]:
    return config(f"probes: [{{name: p, {rest}}}]").probes[0].attach


def test_the_keys_of_an_alternative_replace_the_probes(config: Callable[[str], Config]) -> None:
    first, second, third = attached(
        config,
        """
        attach: [
          'kretprobe:f',
          {to: 'kretprobe:g', returns: u32, fetch: {b: $arg2}, filter: b > 2},
          {to: 'tracepoint:s:e', fetch: {return: ret}, filter: null},
        ],
        returns: int, fetch: {a: '$arg1:u64'}, filter: a == 1""",
    )
    assert str(first.target) == "kretprobe:f"
    assert (first.fetch, first.filter) == ({"a": "$arg1:u64"}, "a == 1")
    assert first.returns
    assert first.returns.fetch == "s32"
    assert str(second.target) == "kretprobe:g"
    assert (second.fetch, second.filter) == ({"b": "$arg2"}, "b > 2")
    assert second.returns
    assert second.returns.fetch == "u32"
    assert str(third.target) == "tracepoint:s:e"
    assert (third.fetch, third.filter) == ({"return": "ret"}, None)
    assert third.returns
    assert third.returns.fetch == "s32"


@pytest.mark.parametrize(
    ("rest", "name"),
    [
        ("attach: 'kretprobe:f'", "long"),
        ("attach: 'kretprobe:f', returns: int", "int"),
        ("attach: 'kretprobe:f', returns: void", "void"),
        ("attach: 'kprobe:f'", None),
        ("attach: 'tracepoint:a:b'", None),
        ("attach: 'tracepoint:a:b', fetch: {return: ret}", "long"),
        ("attach: 'tracepoint:a:b', fetch: {return: ret}, returns: int", "int"),
    ],
)
def test_returns(config: Callable[[str], Config], rest: str, name: str | None) -> None:
    [one] = attached(config, rest)
    assert (one.returns.name if one.returns else None) == name


def test_fetch_keeps_its_order_and_todays_spelling(config: Callable[[str], Config]) -> None:
    [one] = attached(config, "attach: 'kprobe:f', fetch: {b: '%di', a: '+8($arg1):u64', c: sa}")
    assert list(one.fetch.items()) == [("b", "%di"), ("a", "+8($arg1):u64"), ("c", "$stack")]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("attach: 'kprobe:f', fetch: {a: ¦$retval}", "fetch.a: $retval is there only when"),
        ("attach: 'kprobe:f', fetch: {a: '$arg1:¦u63'}", "fetch.a: 'u63' is no type"),
        ("attach: 'kprobe:f', fetch: {a: ¦''}", "fetch.a: the argument is empty"),
        ("attach: 'kprobe:f', fetch: {a: '$arg1¦ b=1'}", "fetch.a: an argument cannot have blanks"),
        ("attach: 'kprobe:f', fetch: {a: '$arg1¦#'}", "fetch.a: a '#' cannot be written"),
        (r'attach: "kprobe:f", fetch: {a: ¦"$arg1\n-:x"}', "fetch.a: a newline cannot be written"),
        ("attach: 'kprobe:f', fetch: {a: ¦$arg*}", "fetch.a: $arg* is many"),
        ("attach: 'kprobe:f', fetch: {¦comm: $arg1}", "fetch.comm: 'comm' is a built-in field"),
        ("attach: 'kprobe:f', fetch: {¦return: $arg1}", "fetch.return: 'return' is a built-in"),
        ("attach: 'kprobe:f', fetch: {common_pid: ¦$arg1}", "fetch.common_pid: every event has"),
        ("attach: 'tracepoint:a:b', fetch: {a: ¦$x}", "fetch.a: on a tracepoint this is the name"),
        ("attach: 'tracepoint:a:b', fetch: {a: ¦b c}", "fetch.a: on a tracepoint this is the name"),
        ("attach: {to: 'kprobe:f', fetch: {a: ¦1}}", "attach.fetch.a: "),
        ("attach: [{to: 'kprobe:f', fetch: {a: ¦1}}]", "attach[0].fetch.a: "),
        ("attach: 'kprobe:f', filter: ¦return < 0", "filter: there is no 'return' here: this is an"),
        (
            "attach: 'kretprobe:f', returns: void, filter: 'cpu > 1 && ¦return < 0'",
            "filter: there is no 'return' here: returns: void",
        ),
        (
            "attach: 'tracepoint:a:b', filter: ¦return < 0",
            "filter: a tracepoint has no 'return' of its own: add fetch: {return: FIELD}",
        ),
        ("attach: 'kprobe:f', filter: cpu > 1 && ¦tid == 3", "filter: the kernel's filter has no 't"),
        ("attach: 'kprobe:f', filter: ¦symbol == \"x\"", "filter: the kernel's filter has no 'sym"),
        (
            "attach: 'kprobe:f', fetch: {count: $arg1}, filter: ¦cuont > 1",
            "filter: there is no field 'cuont' to filter on: fetch it, did you mean 'count'?",
        ),
        ("attach: {to: 'kprobe:f', returns: ¦int}", "attach.returns: kprobe:f has no return value"),
        ("attach: 'kprobe:f', returns: ¦int", "returns: nothing here has a return value to read"),
        ("attach: 'kprobe:f', ¦return_buckets: [1]", "return_buckets: nothing here has a return"),
        ("attach: 'kprobe:f', maxactive: ¦3", "maxactive: only a kretprobe has it"),
        ("attach: 'kretprobe:f', maxactive: ¦0", "maxactive: must be at least 1"),
        ("attach: 'kretprobe:f', maxactive: ¦4097", "maxactive: must be at most 4096"),
    ],
)
def test_refused(problems: Callable[[str], list[str]], rest: str, expected: str) -> None:
    text, place = marked(f"probes: [{{name: p, {rest}}}]")
    [problem] = problems(text)
    assert problem.startswith(f"{place}: probes[0].{expected}")


@pytest.mark.parametrize(
    "rest",
    [
        "attach: 'kretprobe:f', filter: return < 0 && cpu != 3 && comm ~ \"a*\" && common_pid > 1",
        "attach: 'kprobe:f', fetch: {a: '+0($arg1):string'}, filter: a == \"x\"",
        # The running kernel knows what fields a tracepoint has.
        "attach: 'tracepoint:a:b', filter: anything > 3",
        "attach: 'tracepoint:a:b', fetch: {return: ret}, filter: return < 3 || other == 1",
        "attach: ['kretprobe:f', 'kprobe:f'], maxactive: 3, returns: int, return_buckets: [1]",
    ],
)
def test_accepted(problems: Callable[[str], list[str]], rest: str) -> None:
    assert problems(f"probes: [{{name: p, {rest}}}]") == []


def test_what_the_probe_says_must_suit_every_alternative(
    problems: Callable[[str], list[str]],
) -> None:
    text, place = marked("probes: [{name: p, attach: ['kprobe:f', 'tracepoint:a:b'], fetch: {a: ¦$arg1}}]")
    [problem] = problems(text)
    assert problem == (
        f"{place}: probes[0].fetch.a: on a tracepoint this is the name of one of its fields, not"
        " '$arg1' (for tracepoint:a:b: an alternative can have its own fetch)"
    )


def test_fetch_is_bounded(problems: Callable[[str], list[str]]) -> None:
    fetch = ", ".join(f"a{i}: $arg1" for i in range(65))
    [problem] = problems(f"probes: [{{name: p, attach: 'kprobe:f', fetch: {{{fetch}}}}}]")
    assert problem.endswith("probes[0].fetch: at most 64 can be fetched")
