"""Calls and pairs in the configuration become halves, and impossible ones are refused."""

import pytest

from kprobe_exporter.config.model import DURATION_BUCKETS, Attach
from kprobe_exporter.grammar.target import NO_RETURN as WITHOUT_RETURN
from tests.unit.config.conftest import Load, Problems, Refused, marked

TWO_TRACEPOINTS = "from: 'tracepoint:a:b', to: 'tracepoint:a:c'"
TWO_FUNCTIONS = "from: 'kprobe:f', to: 'kretprobe:g'"


def attached(config: Load, rest: str) -> Attach:
    [one] = config(f"probes: [{{name: p, {rest}}}]").probes[0].attach
    return one


def halves(whole: Attach) -> list[str]:
    return [str(one.target) for one in whole.single]


@pytest.mark.parametrize(
    ("to", "entry", "back"),
    [
        ("call:f", "kprobe:f", "kretprobe:f"),
        ("call:ext4:f.isra.0", "kprobe:ext4:f.isra.0", "kretprobe:ext4:f.isra.0"),
        ("ucall:/bin/x:main", "uprobe:/bin/x:main", "uretprobe:/bin/x:main"),
        ("ucall:/bin/x:0x1234", "uprobe:/bin/x:0x1234", "uretprobe:/bin/x:0x1234"),
        ("syscall:openat", "tracepoint:syscalls:sys_enter_openat", "tracepoint:syscalls:sys_exit_openat"),
    ],
)
def test_a_call_is_its_entry_and_its_return(config: Load, to: str, entry: str, back: str) -> None:
    whole = attached(config, f"attach: '{to}', returns: int")
    assert str(whole.target) == to
    assert halves(whole) == [entry, back]
    assert whole.end
    assert (whole.returns, whole.end.returns) == (whole.end.returns, whole.returns)
    assert whole.end.returns
    assert (whole.end.returns.name, whole.end.guessed) == ("int", False)
    assert [begin.returns for begin in whole.begins] == [None]
    assert whole.key == ()


def test_what_a_call_fetches_is_read_on_entry(config: Load) -> None:
    whole = attached(config, "attach: 'call:f', fetch: {n: $arg3, path: '+0($arg1):string'}")
    assert whole.begins[0].fetch == {"n": "$arg3", "path": "+0($arg1):string"}
    assert whole.end
    assert whole.end.fetch == {}
    assert whole.end.returns
    assert (whole.end.returns.name, whole.end.guessed) == ("long", True)


@pytest.mark.parametrize(
    ("returns", "fetched"),
    [("", {"return": "ret"}), ("returns: int", {"return": "ret"}), ("returns: void", {})],
)
def test_a_system_call_returns_ret(config: Load, returns: str, fetched: dict[str, str]) -> None:
    whole = attached(config, f"attach: 'syscall:openat', fetch: {{path: filename}}, {returns}")
    assert whole.begins[0].fetch == {"path": "filename"}
    assert whole.end
    assert whole.end.fetch == fetched
    assert whole.end.returns
    assert not whole.end.returns.wide  # the tracepoint's long is whole, as a register is not


@pytest.mark.parametrize("to", ["call:f", "syscall:f"])
@pytest.mark.parametrize(
    ("written", "kernel", "agent"),
    [
        ("common_pid == 3", "common_pid == 3", None),
        ("common_pid == 3 && common_pid != 4", "common_pid == 3 && common_pid != 4", None),
        (
            "(common_pid == 3 || common_pid == 4) && return > 0",
            "common_pid == 3 || common_pid == 4",
            "return > 0",
        ),
        (
            "return > 0 && common_pid == 3 && duration > 0.5",
            "common_pid == 3",
            "return > 0 && duration > 0.5",
        ),
        ("common_pid == 3 || return > 0", None, "common_pid == 3 || return > 0"),
        ("!(common_pid == 3) && !(return > 0)", "!common_pid == 3", "!return > 0"),
        ("tid == 3 && pid == 4", None, "tid == 3 && pid == 4"),  # only the agent knows pid
        ('comm ~ "a*" && cpu == 0x1', None, 'comm ~ "a*" && cpu == 0x1'),
        (
            'COMM != "a" && CPU == 1 && common_cpu < 2',
            None,
            'common_comm != "a" && common_cpu == 1 && common_cpu < 2',
        ),
        ('symbol == "f" && n >= 1e-3', None, 'symbol == "f" && n >= 1e-3'),
    ],
)
def test_the_kernel_filters_a_call_by_its_thread_alone(
    config: Load, to: str, written: str, kernel: str | None, agent: str | None
) -> None:
    """Any other field may differ on return, or is not known before it."""
    if "1e-3" in written and to == "call:f":
        written, agent = written.replace("1e-3", "1"), agent and agent.replace("1e-3", "1")
    fetch = "{n: $arg1}" if to == "call:f" else "{n: count}"
    whole = attached(config, f"attach: '{to}', fetch: {fetch}, filter: '{written}'")
    assert [one.filter for one in whole.single] == [kernel, kernel]
    assert whole.filter == agent


def test_a_name_that_is_fetched_is_not_the_kernels(config: Load) -> None:
    call = attached(config, "attach: 'call:f', fetch: {COMM: $arg1}, filter: COMM == 3")
    pair = attached(
        config, f"attach: {{pair: {{{TWO_FUNCTIONS}, key: tid}}}}, fetch: {{COMM: $arg1}}, filter: COMM == 3"
    )
    assert [call.filter, pair.filter] == ["COMM == 3", "COMM == 3"]


def test_a_call_may_be_filtered_by_its_caller(config: Load) -> None:
    assert attached(config, "attach: 'call:f', filter: 'caller == \"g\"'").filter == 'caller == "g"'


def test_what_prints_as_text_is_compared_as_text(config: Load, problems: Problems) -> None:
    """The agent evaluates the filter, and it reads a symbol's name where the kernel has the address."""
    text = "attach: 'call:f', fetch: {x: '$arg1:symbol'}, filter: 'x == \"g\"'"
    assert attached(config, text).filter == 'x == "g"'
    [problem] = problems("probes: [{name: p, attach: 'call:f', fetch: {x: '$arg1:symbol'}, filter: x == 3}]")
    assert problem.endswith("'x' is a string, put 3 in quotes")


def test_an_alternative_of_its_own_in_a_list(config: Load) -> None:
    text = """probes: [{name: p, fetch: {n: $arg1}, filter: common_pid == 1, attach: [
            {to: 'call:f', filter: duration > 0.5, fetch: {n: $arg2}, returns: u32},
            {pair: {from: 'kprobe:g', to: 'kprobe:h', key: tid}, filter: null},
            'kprobe:i']}]"""
    call, pair, single = config(text).probes[0].attach
    assert (call.filter, call.begins[0].filter) == ("duration > 0.5", None)
    assert call.begins[0].fetch == {"n": "$arg2"}
    assert call.returns
    assert call.returns.name == "u32"
    assert (pair.filter, pair.begins[0].fetch) == (None, {"n": "$arg1"})
    assert (single.filter, single.single) == ("common_pid == 1", (single,))


def test_a_pair(config: Load) -> None:
    whole = attached(
        config,
        """attach: {pair: {
            from: ['kprobe:f', {to: 'kprobe:g', filter: common_pid == 7, fetch: {n: '$arg2:u32'}}],
            to: {to: 'kretprobe:h', fetch: {m: $retval}, filter: return < 0}, key: tid}},
        fetch: {n: '$arg1:u32'}, returns: int, filter: 'n > 3 && return < -1 && duration >= 1e-3'""",
    )
    assert str(whole.target) == "kprobe:f | kprobe:g -> kretprobe:h"
    assert [(str(one.target), one.fetch, one.filter) for one in whole.single] == [
        ("kprobe:f", {"n": "$arg1:u32"}, None),
        ("kprobe:g", {"n": "$arg2:u32"}, "common_pid == 7"),
        ("kretprobe:h", {"m": "$retval:s32"}, "return < 0"),
    ]
    assert whole.end
    assert [one.returns for one in whole.begins] == [None, None]
    assert whole.returns
    assert (whole.returns, whole.returns.name) == (whole.end.returns, "int")
    assert whole.filter == "n > 3 && return < -1 && duration >= 1e-3"
    assert (whole.key, whole.fetch) == (("tid",), {})


@pytest.mark.parametrize(
    ("key", "fetch", "first", "last"),
    [
        ("dev", "", {"dev": "dev"}, {"dev": "dev"}),
        ("[dev, sector]", "", {"dev": "dev", "sector": "sector"}, {"dev": "dev", "sector": "sector"}),
        ("[dev, dev]", "", {"dev": "dev"}, {"dev": "dev"}),
        ("dev", "fetch: {size: bytes}", {"size": "bytes", "dev": "dev"}, {"dev": "dev"}),
        ("dev", "fetch: {dev: other}", {"dev": "other"}, {"dev": "dev"}),
        ("[tid, cpu, pid]", "", {}, {}),
    ],
)
def test_a_tracepoint_has_the_key_by_its_name(
    config: Load, key: str, fetch: str, first: dict[str, str], last: dict[str, str]
) -> None:
    whole = attached(config, f"attach: {{pair: {{{TWO_TRACEPOINTS}, key: {key}}}}}, {fetch}")
    assert whole.end
    assert ([one.fetch for one in whole.begins], whole.end.fetch) == ([first], last)


def test_what_several_events_begin_with(config: Load) -> None:
    """Several events may begin a pair: a task starts to wait for a CPU if woken, created or preempted."""
    whole = attached(
        config,
        """attach: {pair: {key: task, from: [
            {to: 'tracepoint:sched:sched_wakeup', fetch: {task: pid}},
            {to: 'tracepoint:sched:sched_switch', fetch: {task: prev_pid}, filter: prev_state == 0}],
            to: {to: 'tracepoint:sched:sched_switch', fetch: {task: next_pid}}}}""",
    )
    assert [(one.fetch, one.filter) for one in whole.single] == [
        ({"task": "pid"}, None),
        ({"task": "prev_pid"}, "prev_state == 0"),
        ({"task": "next_pid"}, None),
    ]


def test_a_key_that_a_function_returns_is_read_as_an_argument_is(config: Load) -> None:
    whole = attached(
        config,
        """attach: {pair: {key: at, from: {to: 'kretprobe:alloc', fetch: {at: $retval, n: $retval}},
            to: {to: 'kprobe:free', fetch: {at: $arg1}}}}""",
    )
    assert whole.begins[0].fetch == {"at": "$retval:x64", "n": "$retval:s64"}
    typed = attached(
        config,
        """attach: {pair: {key: at, from: {to: 'kretprobe:open', returns: int, fetch: {at: $retval}},
            to: {to: 'kprobe:close', fetch: {at: '$arg1:s32'}}}}""",
    )
    assert typed.begins[0].fetch == {"at": "$retval:s32"}


def test_the_return_of_a_pair_is_that_of_its_end(config: Load) -> None:
    whole = attached(
        config, "attach: {pair: {from: 'kretprobe:f', to: 'kretprobe:g', key: tid}}, returns: u32"
    )
    assert [one.returns for one in whole.begins] == [None]
    assert whole.end
    assert whole.end.returns
    assert whole.end.returns.name == "u32"


NEXT = "pair: {from: 'tracepoint:a:b', to: {to: 'tracepoint:a:b'}, key: dev}"


def test_a_pair_of_an_event_and_the_next(config: Load) -> None:
    """It is one event, with its own fields and those of the one before it."""
    whole = attached(
        config,
        f"attach: {{{NEXT}}}, fetch: {{end: sector}}, let: {{gap: end - previous_end}},"
        " filter: duration < 1s && previous_dev == 3,"
        " metrics: [{counter: a_total, where: gap == 0, labels: [previous_end]}]",
    )
    [one] = whole.single
    assert whole.again
    assert (one.fetch, whole.key) == ({"end": "sector", "dev": "dev"}, ("dev",))
    assert str(whole.target) == "tracepoint:a:b -> tracepoint:a:b"


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (
            "attach: {pair: {from: 'kprobe:f', ¦through: {a: 'kprobe:g'}, to: 'kprobe:f', key: tid}}",
            "is nothing",
        ),
        (
            f"attach: {{{NEXT}}}, fetch: {{a: b, ¦previous_a: c}}",
            "'previous_a' is the field of the event before",
        ),
        (
            f"attach: {{{NEXT}}}, metrics: [{{counter: a_total, labels: [¦previous_b]}}]",
            "no field 'previous_b'",
        ),
    ],
)
def test_what_a_pair_of_an_event_and_the_next_cannot_have(
    problems: Problems, rest: str, expected: str
) -> None:
    text, place = marked(f"probes: [{{name: p, {rest}}}]")
    [problem] = problems(text)
    assert problem.startswith(f"{place}: ")
    assert expected in problem


def test_outstanding(config: Load) -> None:
    text = f"attach: {{pair: {{{TWO_TRACEPOINTS}, key: dev}}}}, fetch: {{size: bytes}}"
    [probe] = config(
        f"probes: [{{name: p, {text}, outstanding: {{older_than: 1500ms, weigh: size}}}}]"
    ).probes
    assert probe.outstanding == (1_500_000_000, "size")
    [probe] = config("probes: [{name: p, attach: 'call:f', outstanding: {}}]").probes
    assert probe.outstanding == (0, None)
    computed = f"{text}, let: {{sectors: size / 512}}, outstanding: {{weigh: sectors}}"
    [probe] = config(f"probes: [{{name: p, {computed}}}]").probes
    assert probe.outstanding == (0, "sectors")


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("attach: 'kprobe:f', ¦outstanding: {}", "kprobe:f is a single moment, and a call or a pair ends"),
        ("attach: 'call:f', outstanding: {weigh: ¦n}", "'n' is not fetched where call:f begins"),
        (
            "attach: 'call:f', outstanding: {weigh: ¦duration}",
            "'duration' is not fetched where call:f begins",
        ),
        (
            "attach: 'call:f', let: {n: return * 2}, outstanding: {weigh: ¦n}",
            "'return' is not fetched where call:f begins",
        ),
        (
            "attach: 'call:f', fetch: {n: '+0($arg1):string'}, outstanding: {weigh: ¦n}",
            "'n' is not a number to add up",
        ),
    ],
)
def test_what_cannot_be_outstanding(problems: Problems, rest: str, expected: str) -> None:
    text, place = marked(f"probes: [{{name: p, {rest}}}]")
    [problem] = problems(text)
    assert problem.startswith(f"{place}: ")
    assert expected in problem


EVENTS = {"from": "'kprobe:f'", "to": "'kprobe:g'", "key": "tid"}
"""The keys of a pair that is right."""


@pytest.mark.parametrize("missing", EVENTS)
def test_what_a_pair_cannot_do_without(problems: Problems, missing: str) -> None:
    rest = ", ".join(f"{key}: {value}" for key, value in EVENTS.items() if key != missing)
    text, place = marked(f"probes: [{{name: p, attach: {{¦pair: {{{rest}}}}}}}]")
    assert problems(text) == [f"{place}: probes[0].attach.pair.{missing}: the key '{missing}' is missing"]


ONE_EVENT = "is not one event: name the one that is meant"
NO_KEY = "is not a key: take a field that both events have, or tid"
FETCH_KEY = "fetch it there, as {to: …, fetch: {…}}"
OF_ITS_END = "a pair's `return` is that of its last event: fetch this one's $retval under another name"
HALF = "an event of a pair is a text as kprobe:vfs_read, or {to: …}"
TIME = "only a call or a pair takes time"


THROUGH = "through: {queued: 'tracepoint:a:q', sent: {to: 'kprobe:s', fetch: {dev: $arg1}, filter: dev > 3}}"


def test_events_between_those_of_a_pair(config: Load) -> None:
    """They have the key, and no other field of the probe; their times are fields."""
    whole = attached(
        config,
        f"attach: {{pair: {{{TWO_TRACEPOINTS}, {THROUGH}, key: dev}}}}, fetch: {{n: bytes}},"
        " let: {left: duration - sent}, filter: queued > 10ms && n > 3,"
        " metrics: [{histogram: a_seconds, value: queued}, {counter: late_total, where: left > 1ms}]",
    )
    assert list(whole.through) == ["queued", "sent"]
    assert [(str(one.target), one.fetch, one.filter) for one in whole.single] == [
        ("tracepoint:a:b", {"n": "bytes", "dev": "dev"}, None),
        ("tracepoint:a:q", {"dev": "dev"}, None),
        ("kprobe:s", {"dev": "$arg1"}, "dev > 3"),
        ("tracepoint:a:c", {"dev": "dev"}, None),
    ]
    assert str(whole.target) == "tracepoint:a:b -> tracepoint:a:c"
    assert whole.filter == "queued > 0.010 && n > 3"


def test_a_histogram_of_a_step_has_the_buckets_of_durations(config: Load) -> None:
    text = f"attach: {{pair: {{{TWO_TRACEPOINTS}, {THROUGH}, key: dev}}}}"
    [metric] = (
        config(f"probes: [{{name: p, {text}, metrics: [{{histogram: a, value: sent}}]}}]").probes[0].metrics
    )
    assert metric.buckets == DURATION_BUCKETS


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("metrics: [{counter: a_total, labels: [¦sent]}]", "a duration is measured, and each one would be"),
        ("stacks: {weigh: ¦sent}", "'sent' is a part of the duration: weigh by duration"),
        ("metrics: [{counter: a_total, where: dev > ¦1ms}]", "'dev' is not a time, only 'duration' is"),
        ("filter: dev > ¦1ms", "'dev' is not a time, only 'duration' is"),
        ("let: {¦sent: dev + 1}", "'sent' is fetched already: choose another name"),
    ],
)
def test_what_the_time_of_a_step_cannot_be(problems: Problems, rest: str, expected: str) -> None:
    text, place = marked(
        f"probes: [{{name: p, attach: {{pair: {{{TWO_TRACEPOINTS}, {THROUGH}, key: dev}}}}, {rest}}}]"
    )
    [problem] = problems(text)
    assert problem.startswith(f"{place}: ")
    assert expected in problem


def test_times_are_compared_with_durations_alone(problems: Problems) -> None:
    text, place = marked("probes: [{name: p, attach: 'call:f', fetch: {n: $arg1}, filter: n > ¦1ms}]")
    assert problems(text) == [f"{place}: probes[0].filter: 'n' is not a time, only 'duration' is"]


@pytest.mark.parametrize(
    ("through", "expected"),
    [
        ("{¦comm: 'tracepoint:a:q'}", "'comm' is a built-in field: choose another name"),
        ("{¦stack_pointer: 'tracepoint:a:q'}", "'stack_pointer' is a built-in field: choose another name"),
        ("{¦dev: 'tracepoint:a:q'}", "'dev' is fetched already: choose another name"),
        ("{}", "through: is empty: write at least one"),
        ("{q: 'kprobe:q'}", f"kprobe:q has no 'dev': {FETCH_KEY}"),
        ("{q: ¦'tracepoint:a:*'}", f"tracepoint:a:* {ONE_EVENT}"),
        ("{q: {to: 'kretprobe:q', fetch: {dev: $retval}, filter: ¦return > 0}}", OF_ITS_END),
    ],
)
def test_what_cannot_be_between_the_events_of_a_pair(problems: Problems, through: str, expected: str) -> None:
    text = f"probes: [{{name: p, attach: {{pair: {{{TWO_TRACEPOINTS}, through: {through}, key: dev}}}}}}]"
    place = ""
    if "¦" in text:
        text, place = marked(text)
    [problem] = problems(text)
    assert problem.startswith(place)
    assert expected in problem


def test_a_time_is_no_field_of_another_alternative(problems: Problems) -> None:
    text, place = marked(
        f"probes: [{{name: p, attach: [{{pair: {{{TWO_TRACEPOINTS}, {THROUGH}, key: dev}}}},"
        " ¦{to: 'kprobe:g', fetch: {sent: $arg1}}]}]"
    )
    [problem] = problems(text)
    assert problem.startswith(f"{place}: ")
    assert problem.endswith("'sent' is a time in another alternative, and a field here: rename one")


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (f"{TWO_FUNCTIONS}, key: tid, ¦form: 3", "form: unknown key 'form', did you mean 'from'?"),
        ("¦from: [], to: 'kprobe:g', key: tid", "from: is empty: write at least one"),
        ("from: 'kprobe:f', ¦to: ['kprobe:g'], key: tid", f"to: {HALF}"),
        (f"{TWO_FUNCTIONS}, key: ¦3", "key: key is the name of a field, or a list of names"),
        (f"{TWO_FUNCTIONS}, ¦key: []", "key: is empty: write at least one"),
        (f"{TWO_TRACEPOINTS}, key: ¦comm", f"key: 'comm' {NO_KEY}"),
        (f"{TWO_TRACEPOINTS}, key: [tid, ¦duration]", f"key[1]: 'duration' {NO_KEY}"),
        (f"{TWO_FUNCTIONS}, key: ¦return", f"key: 'return' {NO_KEY}"),
        (f"{TWO_TRACEPOINTS}, key: ¦stack_pointer", f"key: 'stack_pointer' {NO_KEY}"),
        (f"{TWO_TRACEPOINTS}, key: ¦a b", "key: 'a b' is not an argument name"),
        (f"{TWO_TRACEPOINTS}, key: ¦common_comm", "key: 'common_comm' is not a key: take a field that both"),
        (
            "from: {to: 'kprobe:f', fetch: {k: '+0($arg1):string'}},"
            " to: {to: 'kprobe:g', fetch: {k: $arg1}}, key: ¦k",
            "key: 'k' is text at kprobe:f, and a number at kprobe:g",
        ),
    ],
)
def test_a_pair_is_refused(refused_probe: Refused, pair: str, expected: str) -> None:
    refused_probe(f"attach: {{pair: {{{pair}}}}}", f"attach.pair.{expected}")


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("from: 'kprobe:f', to: {to: 'kprobe:g', fetch: {k: $arg1}}, key: ¦k", "key: kprobe:f"),
        (
            "from: {to: 'kprobe:f', fetch: {k: $arg1}}, to: 'kretprobe:g', key: [tid, ¦k]",
            "key[1]: kretprobe:g",
        ),
        ("from: 'tracepoint:a:b', to: 'uretprobe:/x:g', key: ¦k", "key: uretprobe:/x:g"),
    ],
)
def test_both_events_have_the_key(refused_probe: Refused, pair: str, expected: str) -> None:
    refused_probe(f"attach: {{pair: {{{pair}}}}}", f"attach.pair.{expected} has no 'k': {FETCH_KEY}")


@pytest.mark.parametrize(
    ("key", "event", "expected"),
    [
        ("from", "{to: 'kprobe:f', ¦fech: 1}", ".fech: unknown key 'fech', did"),
        ("from", "¦3", f": {HALF}, or a list of these"),
        ("from", "['kprobe:f', ¦3]", f"[1]: {HALF}"),
        ("from", "¦'kprobe'", ": 'kprobe' names no kind"),
        ("from", "{to: 'kprobe:¦'}", ".to: the name of the function is missing"),
        ("from", "¦'call:f'", f": call:f {ONE_EVENT}"),
        ("from", "['kprobe:f', ¦'syscall:f']", f"[1]: syscall:f {ONE_EVENT}"),
        ("to", "¦'ucall:/x:f'", f": ucall:/x:f {ONE_EVENT}"),
        ("to", "{to: ¦'kprobe:g*'}", f".to: kprobe:g* {ONE_EVENT}"),
        ("from", "¦'tracepoint:a:*'", f": tracepoint:a:* {ONE_EVENT}"),
        ("from", "{to: 'kprobe:f', returns: ¦int}", ".returns: kprobe:f has no return"),
        ("from", "{to: 'tracepoint:a:b', fetch: {return: ¦x}}", f".fetch.return: {OF_ITS_END}"),
        ("from", "{to: 'kretprobe:f', filter: ¦return < 0}", f".filter: {OF_ITS_END}"),
        (
            "from",
            "['kprobe:f', {to: 'kprobe:g', filter: cpu == 1 && ¦tid == 3}]",
            "[1].filter: the kernel's filter has no 'tid': common_pid is the thread's id",
        ),
        ("to", "{to: 'kprobe:h', filter: 'cpu > 0¦.5'}", ".filter: there must be && or || before '.5'"),
        ("to", "{to: 'kprobe:h', filter: ¦duration > 5}", f".filter: there is no 'duration' here: {TIME}"),
        (
            "from",
            "{to: 'kprobe:f', fetch: {¦stack_pointer: $arg1}}",
            ".fetch.stack_pointer: 'stack_pointer' is the agent's own: choose another name",
        ),
    ],
)
def test_an_event_of_a_pair_is_refused(refused_probe: Refused, key: str, event: str, expected: str) -> None:
    pair = ", ".join(f"{name}: {value}" for name, value in (EVENTS | {key: event}).items())
    refused_probe(f"attach: {{pair: {{{pair}}}}}", f"attach.pair.{key}{expected}")


def test_each_event_that_lacks_the_key_is_named(problems: Problems) -> None:
    text, place = marked(
        "probes: [{name: p, attach: {pair: {from: ['kprobe:f', 'kprobe:g'], to: 'kprobe:h', key: ¦k}}}]"
    )
    assert problems(text) == [
        f"{place}: probes[0].attach.pair.key: kprobe:{name} has no 'k': {FETCH_KEY}" for name in "fgh"
    ]


SERIES = (
    "a duration is measured, and each one would be a series of its own: make it the `value` of a histogram"
)
BOTH = "attach has `to` or `pair`, one of them"
PAIR = f"{{pair: {{{TWO_FUNCTIONS}, key: tid}}}}"
ENTRIES = "{pair: {from: 'kprobe:f', to: 'kprobe:g', key: tid}}"
NO_TIME = f"there is no 'duration' at kprobe:f: {TIME}"
NO_RETURN = "$retval is there only when a named function returns"


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("¦attach: {to: 'kprobe:f', pair: {from: 'kprobe:f', to: 'kprobe:g', key: tid}}", f"attach: {BOTH}"),
        ("attach: ['kprobe:f', ¦{fetch: {a: $arg1}}]", f"attach[1]: {BOTH}"),
        ("attach: {pair: ¦3}", "attach.pair: must be a mapping of KEY: VALUE, and not 3"),
        ("attach: ¦'pair:f'", "attach: a pair is written as pair: {from: …, to: …, key: FIELD}"),
        ("attach: 'call:f¦+4'", "attach: a call has no offset"),
        ("attach: 'ucall:/x:f¦+4'", "attach: a return has no offset"),
        ("attach: 'syscall:f¦*'", "attach: a system call's name cannot have '*' here"),
        (
            "attach: 'call:f', filter: ¦common_flags == 1",
            "filter: 'common_flags' is not read with an event, so what takes time cannot be filtered by it",
        ),
        (
            "attach: {pair: {from: 'kprobe:f', to: 'kprobe:g', key: tid}, filter: ¦nope > 3}",
            "attach.filter: there is no field 'nope' to filter on: fetch it",
        ),
        (
            "attach: {pair: {from: ['kprobe:f', {to: 'kprobe:h', fetch: {n: $arg1}}], to: 'kprobe:g',"
            " key: tid}}, filter: ¦n > 3",
            "filter: there is no field 'n' to filter on: fetch it",
        ),
        (
            "attach: {pair: {from: ['kprobe:f', 'kprobe:h'], to: 'kprobe:g', key: tid},"
            " fetch: {n: ¦$retval}}",
            f"attach.fetch.n: {NO_RETURN}",
        ),
        (
            "attach: 'tracepoint:a:b', metrics: [{counter: a_total, where: 'cpu == 1 && ¦duration > 0.5'}]",
            f"metrics[0].where: there is no 'duration' at tracepoint:a:b: {TIME}",
        ),
        (
            "attach: 'call:f', duration_buckets: {exp2: {min: 1, count: 3, ¦cuont: 1}}",
            "duration_buckets.exp2.cuont: unknown key",
        ),
        (
            "attach: {pair: {from: 'kretprobe:f', to: 'kprobe:g', key: tid}, returns: ¦int}",
            "attach.returns: kprobe:g has no return value to read",
        ),
        (
            "attach: {pair: {from: ['tracepoint:a:b', 'tracepoint:a:d'], to: 'tracepoint:a:c', key: tid}},"
            " aggregate: ¦kernel",
            "aggregate: the kernel would count twice what two events begin, so the agent joins",
        ),
    ],
)
def test_refused(refused_probe: Refused, rest: str, expected: str) -> None:
    refused_probe(rest, expected)


@pytest.mark.parametrize("name", sorted(WITHOUT_RETURN))
def test_system_call_without_return_is_its_entry(config: Load, name: str) -> None:
    entry = attached(config, f"attach: 'syscall:{name}', fetch: {{a: b}}, filter: a == 1 && common_pid == 3")
    assert (str(entry.target), entry.begins, entry.end) == (f"syscall:{name}", (), None)
    assert (entry.fetch, entry.filter, entry.returns) == ({"a": "b"}, "a == 1 && common_pid == 3", None)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("metrics: [{counter: a_total, labels: [¦return]}]", "metrics[0].labels[0]: there is no 'return'"),
        (
            "metrics: [{counter: a_total, labels: [], where: ¦return < 0}]",
            "metrics[0].where: there is no 'return'",
        ),
        (
            "metrics: [{histogram: a_seconds, value: ¦duration}]",
            "metrics[0].value: there is no 'duration' at syscall:exit: it never returns",
        ),
    ],
)
def test_return_of_a_system_call_without_one_refused(
    refused_probe: Refused, more: str, expected: str
) -> None:
    refused_probe(f"attach: 'syscall:exit', {more}", expected)


@pytest.mark.parametrize("to", ["call:do_exit", "call:sys_exit_group", "call:__x64_sys_exit"])
def test_call_of_a_function_that_never_returns_is_one_event(
    config: Load, refused_probe: Refused, to: str
) -> None:
    whole = attached(config, f"attach: '{to}', fetch: {{code: '$arg1:u64'}}, filter: code == 9")
    assert (str(whole.target), whole.end, whole.begins, whole.returns) == (to, None, (), None)
    assert whole.filter == "code == 9"
    idle = "returns: int, duration_buckets: [1, 2]"  # as before it was known that it never returns
    assert attached(config, f"attach: '{to}', {idle}").returns is None
    for field in ("duration", "return"):
        metric = f"{{counter: x_total, value: ¦{field}}}"
        expected = f"metrics[0].value: there is no '{field}' at {to}: it never returns"
        refused_probe(f"attach: '{to}', metrics: [{metric}]", expected)


@pytest.mark.parametrize(
    ("attach", "written", "expected"),
    [
        ("'call:f'", "¦nope == 1", "there is no field 'nope' to filter on: fetch it"),
        (
            "'call:f', fetch: {count: $arg1}",
            "tid > 1 && ¦cuont > 1",
            "there is no field 'cuont' to filter on: fetch it, did you mean 'count'?",
        ),
        ("'call:f', returns: void", "¦return < 0", "there is no 'return' here: returns: void"),
        ("'call:f'", "¦'cpu > 0.5'", "'cpu' is a whole number, compare it with one"),
        ("'call:f'", "¦'duration & 3'", "'duration' is not a whole number, it has no bits"),
        ("'call:f'", "¦'duration == \"x\"'", "'duration' is a number, take the quotes"),
        ("'call:f'", "'duration > 0.5¦.5'", "there must be && or ||"),
        ("'syscall:openat'", "¦'filename == \"x\"'", "there is no field 'filename' to filter on: fetch it"),
        ("'syscall:openat'", "¦caller == 1", "there is no field 'caller' to filter on"),
        (PAIR, "¦nope > 3", "there is no field 'nope' to filter on: fetch it"),
        (PAIR, 'comm == "x" && ¦common_type == 1', "'common_type' is not read with"),
        (PAIR, "¦return == 0.5", "'return' is a whole number, compare it with one"),
        (ENTRIES, "¦return < 3", "there is no 'return' here: what ends the pair returns"),
        ("'syscall:exit'", "¦return < 0", "there is no 'return' here: it never returns"),
        (
            "'syscall:rt_sigreturn'",
            "¦duration > 1",
            "there is no 'duration' here: the kernel gives its return no number",
        ),
        ("'kprobe:f'", "¦duration > 3", f"there is no 'duration' here: {TIME}"),
        ("'kprobe:f'", "'cpu > 0¦.5'", "there must be && or || before '.5'"),
    ],
)
def test_a_filter_is_refused(refused_probe: Refused, attach: str, written: str, expected: str) -> None:
    refused_probe(f"attach: {attach}, filter: {written}", f"filter: {expected}")


@pytest.mark.parametrize(
    ("attach", "fetch", "expected"),
    [
        (PAIR, "n: ¦$retval", f"n: {NO_RETURN}"),
        ("'call:f'", "n: ¦$retval", f"n: {NO_RETURN}"),
        ("'call:f'", "¦duration: $arg1", "duration: 'duration' is a built-in field"),
        ("'call:f'", "¦stack_pointer: $arg1", "stack_pointer: 'stack_pointer' is the agent's own"),
        ("'kprobe:f'", "¦stack_pointer: $arg1", "stack_pointer: 'stack_pointer' is the agent's"),
        ("'tracepoint:a:b'", "¦stack_pointer: x", "stack_pointer: 'stack_pointer' is the agent's"),
        ("'syscall:f'", "a: ¦$arg1", "a: on a tracepoint this is the name of one of its fields"),
        ("'syscall:f'", "¦return: ret", "return: 'return' is a built-in field"),
        ("'uretprobe:/x:f'", "a: ¦$arg1", "a: $arg1 is gone when the function returns"),
        ("'uretprobe:/x:f'", "a: '+8(¦$arg2):u64'", "a: $arg2 is gone when the function"),
        ("'uprobe:/x:f'", "a: ¦$arg0", "a: $arg0 is for kernel functions"),
        ("'ucall:/x:f'", "a: ¦$arg100", "a: $arg100 is for kernel functions"),
    ],
)
def test_an_argument_is_refused(refused_probe: Refused, attach: str, fetch: str, expected: str) -> None:
    refused_probe(f"attach: {attach}, fetch: {{{fetch}}}", f"fetch.{expected}")


@pytest.mark.parametrize(
    ("attach", "metric", "expected"),
    [
        ("'kprobe:f'", "histogram: a_seconds, value: ¦duration", f"value: {NO_TIME}"),
        ("['call:f', 'kprobe:f']", "histogram: a_seconds, value: ¦duration", f"value: {NO_TIME}"),
        ("'kprobe:f'", "counter: a_total, labels: [¦duration]", f"labels[0]: {NO_TIME}"),
        ("'call:f'", "counter: a_total, labels: [comm, ¦duration]", f"labels[1]: {SERIES}"),
        ("'call:f'", "counter: a_total, labels: {took: ¦duration}", f"labels.took: {SERIES}"),
        (PAIR, "counter: a_total, labels: {took: {field: ¦duration}}", f"labels.took.field: {SERIES}"),
    ],
)
def test_a_metric_is_refused(refused_probe: Refused, attach: str, metric: str, expected: str) -> None:
    refused_probe(f"attach: {attach}, metrics: [{{{metric}}}]", f"metrics[0].{expected}")


@pytest.mark.parametrize(
    ("attach", "key", "expected"),
    [
        ("'kprobe:f'", "¦duration_buckets: [1]", "nothing here takes time: attach a call or"),
        ("'call:f'", "¦duration_buckets: [2, 1]", "buckets must rise: 1 comes after 2"),
        *((attach, "maxactive: ¦3", "only a kretprobe has it") for attach in ("'syscall:f'", "'ucall:/x:f'")),
        (ENTRIES, "maxactive: ¦3", "only a kretprobe has it"),
        (ENTRIES, "returns: ¦int", "nothing here has a return value to read: leave it out"),
        (ENTRIES, "¦return_buckets: [1]", "nothing here has a return value to read"),
        ("'ucall:/bin/true:f'", "aggregate: ¦kernel", "a stack pointer of a program is not unique"),
        (
            "{pair: {from: 'tracepoint:a:b', to: 'tracepoint:a:b', key: tid}}",
            "aggregate: ¦kernel",
            "the kernel does not join an event with the next one of it",
        ),
        (
            "{pair: {from: 'tracepoint:a:b', through: {late: 'tracepoint:a:d'}, to: 'kprobe:f', key: tid}}",
            "aggregate: ¦kernel",
            "the kernel keeps no times between two events",
        ),
    ],
)
def test_a_key_is_refused(refused_probe: Refused, attach: str, key: str, expected: str) -> None:
    name = key.removeprefix("¦").partition(":")[0]
    refused_probe(f"attach: {attach}, {key}", f"{name}: {expected}")


@pytest.mark.parametrize(
    "rest",
    [
        "attach: 'call:f', maxactive: 3, duration_buckets: [0.1, 1], return_buckets: [1], returns: int",
        "attach: ['kprobe:f', 'call:f'], duration_buckets: {exp2: {min: 1e-6, count: 20}}",
        "attach: {pair: {from: 'kretprobe:f', to: 'kprobe:g', key: tid}}, maxactive: 3",
        "attach: {pair: {from: ['uprobe:/x:f', 'kprobe:f'], to: 'uretprobe:/x:f', key: tid}}, returns: int",
        "attach: 'uprobe:/x:f', fetch: {a: $arg1, b: '+8($arg2):u64', c: '+0(+0($arg6)):string'}",
        "attach: 'ucall:/x:f', fetch: {a: $arg1}, filter: a > 0 && duration > 0.25",
        "attach: 'call:f', filter: duration > 0.5 || duration < -1e-3",
        # The agent compares numbers of different sizes alike.
        "attach: {pair: {from: [{to: 'kprobe:f', fetch: {a: $arg1}}, {to: 'kprobe:g', fetch:"
        " {a: '$arg2:u8'}}], to: 'kprobe:h', key: tid}}, filter: a == 3,"
        " metrics: [{counter: a_total, labels: [a]}]",
        "attach: 'call:f', metrics: [{histogram: a_seconds, value: duration, where: duration > 0.5},"
        " {counter: took_seconds_total, value: duration}, {gauge: last_seconds, value: duration},"
        " {counter: x_total, labels: [caller, comm, cpu, pid, return, symbol, tid]}]",
        "attach: {pair: {from: 'tracepoint:a:b', to: {to: 'tracepoint:a:c', fetch: {return: error}},"
        " key: dev}}, returns: int, metrics: [{counter: a_total, value: return, labels: [dev]}]",
        # A tracepoint's filter may name a field that only the kernel knows.
        "attach: 'tracepoint:a:b', filter: duration > 3",
    ],
)
def test_accepted(problems: Problems, rest: str) -> None:
    assert problems(f"probes: [{{name: p, {rest}}}]") == []


@pytest.mark.parametrize(
    ("rest", "built_in", "buckets"),
    [
        ("", (), DURATION_BUCKETS),
        ("duration_buckets: none", (), DURATION_BUCKETS),
        ("duration_buckets: [0.5, 1]", (0.5, 1.0), (0.5, 1.0)),
        ("duration_buckets: {exp2: {min: 0.25, count: 3}}", (0.25, 0.5, 1.0), (0.25, 0.5, 1.0)),
        ("export: span", DURATION_BUCKETS, DURATION_BUCKETS),
    ],
)
def test_a_histogram_of_durations_has_the_probes_buckets(
    config: Load, rest: str, built_in: tuple[float, ...], buckets: tuple[float, ...]
) -> None:
    text = f"attach: 'call:f', metrics: [{{histogram: a_seconds, value: duration}}], {rest}"
    [probe] = config(f"otlp: {{}}\nprobes: [{{name: p, {text}}}]").probes
    assert probe.duration_buckets == built_in
    assert probe.metrics[0].buckets == buckets


def test_the_usual_buckets_are_a_microsecond_to_17_seconds() -> None:
    first, second, *_, last = DURATION_BUCKETS
    assert [f"{bound:g}" for bound in (first, second, last)] == ["1e-06", "4e-06", "16.7772"]


PAIR = "attach: {pair: {from: [BEGIN], to: 'tracepoint:a:end', key: KEY}}"


@pytest.mark.parametrize(
    ("begin", "key", "expected"),
    [
        (
            "{to: 'tracepoint:a:one', fetch: {x: null}}",
            "[x]",
            "'x' is null at tracepoint:a:one: both events must have the key",
        ),
        (
            "{to: 'tracepoint:a:one', fetch: {x: null}}, {to: 'tracepoint:a:two', fetch: {x: y}}",
            "tid",
            "'x' is null at tracepoint:a:one, and a field at tracepoint:a:two: let it be the same",
        ),
    ],
)
def test_a_null_must_suit_the_pair(problems: Problems, begin: str, key: str, expected: str) -> None:
    text = PAIR.replace("BEGIN", begin).replace("KEY", key)
    [problem] = problems(f"probes: [{{name: p, {text}}}]")
    assert problem.endswith(f": {expected}")


def test_a_field_of_either_event_is_not_absent(config: Load) -> None:
    end = "{to: 'tracepoint:a:end', fetch: {x: null, y: y, z: null}}"
    pair = f"attach: {{pair: {{from: 'tracepoint:a:one', to: {end}, key: tid}}}}"
    assert attached(config, f"{pair}, fetch: {{x: x, y: null}}").absent == frozenset({"z"})


@pytest.mark.parametrize(
    ("begins", "warned"),
    [
        ("[{to: 'tracepoint:sched:sched_wakeup', fetch: {task: pid}}]", True),
        (
            "[{to: 'tracepoint:sched:sched_wakeup', fetch: {task: pid}},"
            " {to: 'tracepoint:sched:sched_switch', fetch: {task: prev_pid}}]",
            False,
        ),
        ("[{to: 'tracepoint:block:block_rq_issue', fetch: {task: dev}}]", False),
    ],
)
def test_a_wait_for_a_cpu_also_begins_where_a_thread_loses_it(
    config: Load, begins: str, warned: bool
) -> None:
    to = "{to: 'tracepoint:sched:sched_switch', fetch: {task: next_pid}}"
    found = config(f"probes: [{{name: p, attach: {{pair: {{from: {begins}, to: {to}, key: task}}}}}}]")
    assert ["waits as well, and is not counted" in one for one in found.warnings] == [True] * warned
