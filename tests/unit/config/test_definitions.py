"""config.definitions: lines in the kernel's own grammar become probes like any other."""

import json
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.config.definitions import defined_name
from kprobe_exporter.config.model import Attach, Probe, return_type
from kprobe_exporter.errors import ConfigError
from kprobe_exporter.grammar.definition import parse_definition
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from tests.unit.config.conftest import Load, Problems, Refused, marked
from tests.unit.grammar.generate import definition


def probe(config: Load, line: str, rest: str = "") -> Probe:
    [found] = config(f"probes: [{{definition: '{line}', {rest}}}]").probes
    return found


def test_it_says_the_same_as_the_keys(config: Load) -> None:
    line = "r12:myopen ext4:do_sys_openat2 rval=$retval path=+0(%si):string"
    keys = """name: myopen, maxactive: 12, attach: 'kretprobe:ext4:do_sys_openat2',
        fetch: {rval: $retval, path: '+0(%si):string'}"""
    rest = """help: h, filter: rval < 0 && return != -2, returns: int, return_buckets: [1], stack: true,
        optional: true, metrics: [{counter: a_total, where: rval > -9, labels: [path, caller]}]"""
    [same] = config(f"probes: [{{{keys}, {rest}}}]").probes
    assert probe(config, line, rest) == same
    assert same.attach[0].fetch == {"rval": "$retval:s32", "path": "+0(%si):string"}


@pytest.mark.parametrize(
    ("line", "target", "name"),
    [
        ("p vfs_read", "kprobe:vfs_read", "p_vfs_read_0"),
        ("p:x vfs_read+0x10", "kprobe:vfs_read+16", "x"),
        ("p ext4:ext4_Write+4", "kprobe:ext4:ext4_Write+4", "p_ext4_ext4_write_4"),
        ("r vfs_read", "kretprobe:vfs_read", "r_vfs_read_0"),
        ("p:x vfs_read%return", "kretprobe:vfs_read", "x"),
        ("e:x sched/sched_process_exec", "tracepoint:sched:sched_process_exec", "x"),
        ("e sched.sched_process_exec", "tracepoint:sched:sched_process_exec", "sched_process_exec"),
        (f"p {'a' * 50}", f"kprobe:{'a' * 50}", "p_" + "a" * 38),
        ("p do_it.isra.0", "kprobe:do_it.isra.0", "p_do_it_isra_0_0"),
        ("p:x /bin/sh:0x10 a=%di", "uprobe:/bin/sh:0x10", "x"),
        ("r:x /bin/sh:0x10 a=$retval", "uretprobe:/bin/sh:0x10", "x"),
        ("f:x vfs_read a=$arg1", "fentry:vfs_read", "x"),
        ("f:x vfs_read%return a=$retval", "fexit:vfs_read", "x"),
    ],
)
def test_targets_and_names(config: Load, line: str, target: str, name: str) -> None:
    found = probe(config, line)
    assert [one.target for one in found.attach] == [parse_target(target)]
    assert found.name == name
    assert probe(config, line, "name: own").name == "own"


def test_places_that_attach_cannot_name(config: Load) -> None:
    found = probe(config, "p 0xffffffff81234567 a=%di")
    assert found.name == "p_0xffffffff81234567"
    target = Target(Kind.KPROBE, symbol="0xffffffff81234567")
    assert found.attach == (Attach(target, {"a": "%di"}, None, None),)
    [attach] = probe(config, "r:x _text+0x123 a=%di").attach
    assert attach.target == Target(Kind.KRETPROBE, symbol="_text", offset=0x123)
    [attach] = probe(config, "p:x _text+0x123 a=$arg1").attach
    assert attach.fetch == {"a": "$arg1"}


def test_an_event_and_its_filter(config: Load) -> None:
    line = 'e:x syscalls/sys_exit_openat return=$ret $id comm=$comm:string if return < 0 && comm ~ "a*"'
    [attach] = probe(config, line, "returns: long, fetch: {more: other}").attach
    target = Target(Kind.TRACEPOINT, system="syscalls", event="sys_exit_openat")
    fetch = {"return": "ret", "arg2": "id", "comm": "$comm", "more": "other"}
    whole = return_type("long")
    assert attach == Attach(target, fetch, 'return < 0 && comm ~ "a*"', whole)


def test_what_is_there_by_itself_may_be_named(config: Load) -> None:
    [attach] = probe(config, "p:x f comm=$comm who=$comm").attach
    assert attach.fetch == {"who": "$comm"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("definition: ¦'-:x'", "definition: this deletes a probe"),
        ("definition: 'p:x f ¦$ag1'", "definition: there is no '$ag1'"),
        (r'definition: ¦"p f\n-:x"', "definition: a newline cannot be written to the kernel"),
        ("definition: 'p f¦#g'", "definition: a '#' cannot be written to the kernel"),
        ("definition: ¦3", "definition: must be text, and not 3"),
        ("definition: 'p:¦Open f'", "definition: 'Open' cannot be a probe's name, up to 40 of a-z"),
        (f"definition: 'p:¦{'a' * 41} f'", "definition: 'aaaa"),
        ("definition: 'p:x ¦/bin/sh:0x10(0x20) %di'", "definition: the counter of a place's users is left"),
        ("definition: 'f:x vfs_read ¦$arg*'", "definition: $arg* is many"),
        ("definition: ¦'t:x sched_switch'", "definition: attach to the tracepoint by `attach: trace"),
        ("definition: 'r:x ¦0xffffffff81234567'", "definition: what is returned at an address is not known"),
        ("definition: 'p:x f ¦$arg*'", "definition: $arg* is many: give each argument a name"),
        ("definition: 'p:x f a=%di ¦pid=%si'", "definition: 'pid' is a built-in field: choose another name"),
        ("definition: 'r:x f ¦return=$retval'", "definition: 'return' is a built-in field"),
        ("definition: 'p:x f a=%di', fetch: {¦a: '%si'}", "fetch.a: the definition has an argument of this"),
        ("definition: 'r3:x f', maxactive: ¦4", "maxactive: the definition says 3 already: keep one"),
        ("definition: 'p:x f', maxactive: ¦4", "maxactive: only a kretprobe has it"),
        ("definition: 'p:x f', returns: ¦int", "returns: nothing here has a return value"),
        ("definition: 'e:x a.b if c == 1', filter: ¦d == 2", "filter: the definition has a filter already"),
        ("definition: 'e:x a.b c=$d:¦u8[2]'", "definition: only memory can be an array"),
        ("definition: 'e:x a.b ¦pid=$tid'", "definition: 'pid' is a built-in field: choose another name"),
        ("definition: 'p:x f a=%di', filter: ¦'a ~ \"x\"'", "filter: 'a' is a number, take the quotes away"),
        (
            "definition: ¦'p:x f', attach: kprobe:f, name: n",
            "definition: a probe has `attach` or `definition`",
        ),
    ],
)
def test_refused(refused: Refused, text: str, expected: str) -> None:
    refused(f"probes: [{{{text}}}]", f"probes[0].{expected}")


@pytest.mark.parametrize("line", ["p:same f", "p f", "e same.p_f_0"])
def test_names_are_unique(problems: Problems, line: str) -> None:
    [problem] = problems(
        f"probes:\n- {{name: {defined_name(line)}, attach: 'kprobe:f'}}\n- definition: '{line}'"
    )
    assert problem.startswith("3:15: probes[1].definition: there is a probe ")
    assert problem.endswith("c.yaml:2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("definition: 'p:¦grp/x f'", "the group 'grp' is ignored: the agent has its own"),
        ("definition: 'p:x f y=¦a1'", "a1 is the spelling of before Linux 2.6.33, read as $arg2"),
        ("definition: 'r:x f y=¦rv'", "rv is the spelling of before Linux 2.6.33, read as $retval"),
        ("definition: 'p:x f +8(¦sa)'", "sa is the spelling of before Linux 2.6.33, read as $stack"),
        ("definition: 'r:x f ¦ra'", "ra is ignored, each return shows its caller"),
        ("definition: 'e:x a.b y=¦$f:u8'", "$f is read by the event's own type, and not as u8"),
    ],
)
def test_warnings(config: Load, text: str, expected: str) -> None:
    text, place = marked(f"probes: [{{{text}}}]")
    [warning] = config(text).warnings
    assert warning.endswith(f"c.yaml:{place}: probes[0].definition: warning: {expected}")


def test_there_are_no_warnings_without_a_reason(config: Load) -> None:
    assert config("probes: [{definition: 'r:x f a=$retval'}]").warnings == ()


def test_any_definition_loads_as_it_is_parsed_or_is_refused(config: Load) -> None:
    random, taken, refused = Random(1), 0, [True]
    for line in (definition(random) for _ in range(300)):
        try:
            found = config(json.dumps({"probes": [{"name": "p", "definition": line}]}))
        except ConfigError as error:
            refused += [str(problem).isprintable() for problem in error.problems]
            continue
        taken += 1
        parsed = parse_definition(line)
        [attach] = found.probes[0].attach
        assert str(attach.target).endswith(f":{parsed.place}")
        untyped = {name: body.removesuffix(":s64") for name, body in attach.fetch.items()}
        assert untyped == {arg.name: arg.body.removesuffix(":s64") for arg in parsed.args}
    assert taken > 100
    assert all(refused)


@given(st.text(max_size=20))
def test_what_is_no_definition_has_no_name(text: str) -> None:
    name = defined_name(text)
    assert name is None or re.fullmatch(r"\w{1,63}", name)
