"""config.alternatives: keys that replace each other, fetch arguments, filters, return values."""

import pytest

from kprobe_exporter.config.model import Attach
from tests.unit.config.conftest import Load, Problems, Refused, marked


def attached(config: Load, rest: str) -> tuple[Attach, ...]:
    return config(f"probes: [{{name: p, {rest}}}]").probes[0].attach


def test_the_keys_of_an_alternative_replace_the_probes(config: Load) -> None:
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
    ("rest", "errno"),
    [
        ("attach: 'kretprobe:f'", True),
        ("attach: 'syscall:openat'", True),
        ("attach: 'uretprobe:/bin/bash:f'", False),
        ("attach: 'ucall:/bin/bash:f', returns: int", False),
        ("attach: 'ucall:/bin/bash:f', returns: errno", True),
        ("attach: 'kretprobe:f', returns: errno", True),
    ],
)
def test_programs_return_no_error_numbers_unless_asked(config: Load, rest: str, errno: bool) -> None:
    [attach] = attached(config, rest)
    assert attach.returns
    assert attach.returns.errno == errno


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
def test_returns(config: Load, rest: str, name: str | None) -> None:
    [one] = attached(config, rest)
    assert (one.returns.name if one.returns else None) == name


def test_fetch_keeps_its_order_and_todays_spelling(config: Load) -> None:
    [one] = attached(config, "attach: 'kprobe:f', fetch: {b: '%di', a: '+8($arg1):u64', c: sa}")
    assert list(one.fetch.items()) == [("b", "%di"), ("a", "+8($arg1):u64"), ("c", "$stack")]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("attach: 'kprobe:f', fetch: {a: ¦$retval}", "fetch.a: $retval is there only when"),
        ("attach: 'kprobe:f', fetch: {a: '$arg1:¦u63'}", "fetch.a: 'u63' is not a type"),
        ("attach: 'kprobe:f', fetch: {a: ¦''}", "fetch.a: the argument is empty"),
        ("attach: 'kprobe:f', fetch: {a: '$arg1¦ b=1'}", "fetch.a: an argument cannot have blanks"),
        ("attach: 'kprobe:f', fetch: {a: '$arg1¦#'}", "fetch.a: a '#' cannot be written"),
        (r'attach: "kprobe:f", fetch: {a: ¦"$arg1\n-:x"}', "fetch.a: a newline cannot be written"),
        ("attach: 'kprobe:f', fetch: {a: ¦$arg*}", "fetch.a: $arg* is many"),
        ("attach: 'kprobe:f', fetch: {¦comm: $arg1}", "fetch.comm: 'comm' is a built-in field"),
        ("attach: 'kprobe:f', fetch: {¦return: $arg1}", "fetch.return: 'return' is a built-in"),
        ("attach: 'kprobe:f', fetch: {¦common_pid: $arg1}", "fetch.common_pid: 'common_pid' is a built-in"),
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
        ("attach: 'kprobe:f', fetch: {x: $arg1}, filter: ¦'x ~ \"a*\"'", "filter: 'x' is a number, take"),
        ("attach: 'kprobe:f', fetch: {x: $arg1}, filter: cpu > 1 && ¦x == -3", "filter: 'x' is unsigned"),
        ("attach: 'kprobe:f', fetch: {x: '+0($arg1):string'}, filter: ¦x == 3", "filter: 'x' is a string"),
        ("attach: 'kprobe:f', fetch: {x: '+0($arg1):u8[4]'}, filter: ¦x == 3", "filter: 'x' is an array"),
        ("attach: 'kprobe:f', fetch: {x: '$arg1:symbol'}, filter: ¦'x == \"f\"'", "filter: 'x' is a number"),
        ("attach: 'kretprobe:f', filter: ¦'return == \"x\"'", "filter: 'return' is a number"),
        ("attach: 'kretprobe:f', returns: bool, filter: ¦return == -1", "filter: 'return' is unsigned"),
        ("attach: 'kretprobe:f', filter: ¦comm == 3", "filter: 'comm' is a string, put 3 in quotes"),
        ("attach: {to: 'kprobe:f', returns: ¦int}", "attach.returns: kprobe:f has no return value"),
        ("attach: 'kprobe:f', returns: ¦int", "returns: nothing here has a return value to read"),
        ("attach: 'kprobe:f', ¦return_buckets: [1]", "return_buckets: nothing here has a return"),
        ("attach: 'kprobe:f', fetch: {a: null}, filter: ¦a == 1", "filter: 'a' is null here, so nothing"),
        (
            "attach: 'tracepoint:a:b', fetch: {a: null}, filter: ¦a == 1",
            "filter: 'a' is null here, so nothing can be filtered by it",
        ),
        ("attach: {to: 'kprobe:f', fetch: {¦comm: null}}", "attach.fetch.comm: 'comm' is a built-in"),
        (
            "attach: 'tracepoint:a:b', fetch: {a: null}, metrics: [{counter: a_total, value: ¦a}]",
            "metrics[0].value: 'a' is null at tracepoint:a:b: this needs a number",
        ),
        (
            "attach: 'tracepoint:a:b', fetch: {a: null}, aggregate: kernel,"
            " metrics: [{counter: a_total, where: ¦a == 1}]",
            "metrics[0].where: 'a' is null in an alternative, and the kernel has to compare it",
        ),
        ("attach: 'kprobe:f', maxactive: ¦3", "maxactive: only a kretprobe has it"),
        ("attach: 'kretprobe:f', maxactive: ¦0", "maxactive: must be at least 1"),
        ("attach: 'kretprobe:f', maxactive: ¦4097", "maxactive: must be at most 4096"),
    ],
)
def test_refused(refused_probe: Refused, rest: str, expected: str) -> None:
    refused_probe(rest, expected)


@pytest.mark.parametrize(
    "rest",
    [
        "attach: 'kretprobe:f', filter: return < 0 && cpu != 3 && comm ~ \"a*\" && common_pid > 1",
        "attach: 'kprobe:f', fetch: {a: '+0($arg1):string'}, filter: a == \"x\"",
        # Only the running kernel knows which fields a tracepoint has.
        "attach: 'tracepoint:a:b', filter: anything > 3",
        "attach: 'tracepoint:a:b', fetch: {return: ret}, filter: return < 3 || other == 1",
        "attach: ['kretprobe:f', 'kprobe:f'], maxactive: 3, returns: int, return_buckets: [1]",
        "attach: 'kretprobe:f', returns: ptr, filter: return == 0xfffffffffffffffe",
        "attach: 'kprobe:f', fetch: {a: '$arg1:s32', b: '+0($arg1):char'}, filter: a == -3 && b == 0x61",
        "attach: 'kprobe:f', fetch: {COMM: '$arg1'}, filter: COMM == 3",
        # A function may begin with an endbr64, so an offset of 4 is still its entry.
        "attach: 'kprobe:f+4', fetch: {a: $arg1}",
    ],
)
def test_accepted(problems: Problems, rest: str) -> None:
    assert problems(f"probes: [{{name: p, {rest}}}]") == []


def test_a_field_that_an_alternative_lacks_is_null(config: Load) -> None:
    reason = "{counter: drops_total, labels: {reason: reason, protocol: protocol}}"
    first, second = attached(
        config,
        """
        attach: ['tracepoint:a:b', {to: 'tracepoint:a:b', fetch: {reason: null, protocol: protocol}}],
        fetch: {reason: reason, protocol: protocol}, metrics: ["""
        + reason
        + "]",
    )
    assert (first.fetch, first.absent) == ({"reason": "reason", "protocol": "protocol"}, frozenset())
    assert (second.fetch, second.absent) == ({"protocol": "protocol"}, frozenset({"reason"}))


@pytest.mark.parametrize("kind", ["call:f", "syscall:read"])
def test_a_null_of_a_call_is_one_of_its_entry(config: Load, kind: str) -> None:
    [one] = attached(config, f"attach: '{kind}', fetch: {{a: null}}")
    assert one.absent == one.begins[0].absent == frozenset({"a"})


def test_what_the_probe_says_must_suit_every_alternative(problems: Problems) -> None:
    text, place = marked("probes: [{name: p, attach: ['kprobe:f', 'tracepoint:a:b'], fetch: {a: ¦$arg1}}]")
    [problem] = problems(text)
    assert problem == (
        f"{place}: probes[0].fetch.a: on a tracepoint this is the name of one of its fields, or memory"
        " behind one as +8($FIELD):u32, not '$arg1' (for tracepoint:a:b: an alternative can have its own"
        " fetch)"
    )


def test_a_filter_must_suit_every_alternative(problems: Problems) -> None:
    text, place = marked(
        """probes: [{name: p, filter: ¦'a == "x"', fetch: {a: '+0($arg1):string'},
        attach: ['kprobe:f', {to: 'kprobe:g', fetch: {a: $arg1}}, {to: 'tracepoint:a:b', fetch: {a: b}}]}]"""
    )
    [problem] = problems(text)
    assert problem == (
        f"{place}: probes[0].filter: 'a' is a number, take the quotes away"
        " (for kprobe:g: an alternative can have its own filter)"
    )


def test_the_return_value_has_a_type_always(config: Load) -> None:
    [one] = attached(
        config, "attach: 'kretprobe:f', fetch: {a: $retval, b: '$retval:u8', c: rv}, returns: int"
    )
    assert one.fetch == {"a": "$retval:s32", "b": "$retval:u8", "c": "$retval:s32"}
    [one] = attached(config, "attach: 'kretprobe:f', fetch: {a: $retval}, returns: void")
    assert one.fetch == {"a": "$retval"}


def test_an_old_spelling_is_told(config: Load) -> None:
    found = config("probes: [{name: p, attach: ['kprobe:f', 'kprobe:g'], fetch: {x: a0, y: sa}}]").warnings
    assert [warning.split("c.yaml:")[1] for warning in found] == [
        "1:65: probes[0].fetch.x: warning: a0 is the spelling of before Linux 2.6.33, read as $arg1",
        "1:72: probes[0].fetch.y: warning: sa is the spelling of before Linux 2.6.33, read as $stack",
    ]


def test_fetch_is_bounded(problems: Problems) -> None:
    """By MAX_TRACE_ARGS of kernel/trace/trace_probe.h, which is 128 on every kernel."""
    fetch = ", ".join(f"a{i}: $arg1" for i in range(128))
    assert problems(f"probes: [{{name: p, attach: 'kprobe:f', fetch: {{{fetch}}}}}]") == []
    fetch = ", ".join(f"a{i}: $arg1" for i in range(129))
    [problem] = problems(f"probes: [{{name: p, attach: 'kprobe:f', fetch: {{{fetch}}}}}]")
    assert problem.endswith("probes[0].fetch: at most 128 can be fetched")
