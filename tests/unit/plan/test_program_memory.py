"""Memory behind the fields of tracepoints: the plan on saved kernels, with and without eprobes."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.grammar.target import Target
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.plan import JoinedSpec, Kernel, plan_probe
from kprobe_exporter.plan.system_call import BY_KPROBE
from tests.support.kernel_formats import RELEASES, saved

OPENAT, EXECVE = "tracepoint:syscalls:sys_enter_openat", "tracepoint:syscalls:sys_enter_execve"
STATE = "tracepoint:sock:inet_sock_set_state"
FILE = "fetch: {file: {string: filename}}"
ARGV = "fetch: {argv: {strings: argv, max: 3}}"
EPROBES = RELEASES[1:]


def kernel(release: str, *, eprobes: bool | None = None) -> Kernel:
    """Return a saved kernel, on which a system call's function begins with __x64_."""

    def text(system: str, event: str) -> str | None:
        found = saved(release).get(f"tracefs/events/{system}/{event}/format")
        return None if found is None else found.decode()

    def place(target: Target) -> tuple[Target, str]:
        return replace(target, symbol=f"__x64_{target.symbol}"), ""

    there = release in EPROBES if eprobes is None else eprobes
    return Kernel(text, counts_tracepoints=there, binary=True, place=place, eprobes=there)


def planned(directory: Path, keys: str, where: Kernel) -> list[ProbeSpec | JoinedSpec | Unsupported]:
    path = directory / "config.yaml"
    path.write_text(f"probes: [{{name: p, {keys}}}]")
    [probe] = load([path], DECODERS).probes
    return [*plan_probe(probe, "ns", DECODERS, where, itertools.count()).alternatives]


def first(ways: list[ProbeSpec | JoinedSpec | Unsupported]) -> ProbeSpec:
    return next(way for way in ways if isinstance(way, ProbeSpec) and way.plan == "events")


def begins(directory: Path, keys: str, where: Kernel) -> list[ProbeSpec | Unsupported]:
    [joined] = planned(directory, keys, where)
    assert isinstance(joined, JoinedSpec), joined
    return [*joined.ways[0]]


def counted(*labels: str) -> str:
    return f"metrics: [{{counter: a_total, labels: [{', '.join(labels)}]}}]"


@pytest.mark.parametrize("release", EPROBES)
@pytest.mark.parametrize("fetch", [FILE, "fetch: {file: '+0($filename):ustring'}"])
def test_string_read_by_eprobe(tmp_path: Path, release: str, fetch: str) -> None:
    spec = first(planned(tmp_path, f"attach: '{OPENAT}', {fetch}, {counted('file')}", kernel(release)))
    assert (spec.file, spec.verb) == ("dynamic_events", "e")
    assert spec.body == "syscalls.sys_enter_openat file=+0($filename):ustring"


@pytest.mark.parametrize("release", EPROBES)
def test_string_beside_return(tmp_path: Path, release: str) -> None:
    eprobe, *others = begins(
        tmp_path, f"attach: 'syscall:openat', {FILE}, {counted('file')}", kernel(release)
    )
    assert isinstance(eprobe, ProbeSpec)
    assert eprobe.body == "syscalls.sys_enter_openat file=+0($filename):ustring"
    copied = [way for way in others if isinstance(way, ProbeSpec)]
    assert [[(arg.name, arg.field) for arg in way.layout.args] for way in copied] == (
        [[("file", "__filename_val")]] if release == "7.2" else []
    )


@pytest.mark.parametrize(
    ("attach", "kind"), [(OPENAT, "alone"), ("syscall:openat", "begin")], ids=["tracepoint", "syscall"]
)
def test_kprobe_without_eprobes(tmp_path: Path, attach: str, kind: str) -> None:
    keys = f"attach: '{attach}', fetch: {{file: {{string: filename}}, flags: flags}}, filter: flags & 64"
    keys += f", {counted('file', 'flags', 'comm')}"
    ways = (
        begins(tmp_path, keys, kernel("5.10")) if kind == "begin" else planned(tmp_path, keys, kernel("5.10"))
    )
    spec = next(way for way in ways if isinstance(way, ProbeSpec) and way.file == "kprobe_events")
    assert spec.body == (
        "__x64_sys_openat flags=+96($arg1):s32 file=+0(+104($arg1)):ustring comm=$comm:string"
    )
    assert (spec.target, spec.symbol, spec.layout.symbol) == ("kprobe:sys_openat", *("sys_openat",) * 2)
    assert spec.filter == (None if kind == "begin" else "flags & 64")
    assert BY_KPROBE in spec.note


def test_no_kprobe_where_eprobes_are(tmp_path: Path) -> None:
    ways = planned(tmp_path, f"attach: '{OPENAT}', {FILE}, {counted('file')}", kernel("6.12"))
    assert [way.file for way in ways if isinstance(way, ProbeSpec)] == ["dynamic_events"]


def test_registers_without_numbered_arguments(tmp_path: Path) -> None:
    where = replace(kernel("5.10"), machine="EM_X86_64")
    spec = planned(tmp_path, f"attach: '{OPENAT}', {FILE}, {counted('file')}", where)[-1]
    assert isinstance(spec, ProbeSpec)
    assert spec.body == "__x64_sys_openat file=+0(+104(%di)):ustring"


@pytest.mark.parametrize("release", EPROBES)
def test_copied_string_without_eprobe(tmp_path: Path, release: str) -> None:
    keys = f"attach: '{OPENAT}', {FILE}, filter: 'file == \"/x\"', {counted('file')}"
    own = [
        way for way in planned(tmp_path, keys, kernel(release)) if isinstance(way, ProbeSpec) and not way.file
    ]
    assert [way.filter for way in own] == (['__filename_val == "/x"', None] if release == "7.2" else [])
    assert all(way.residual_filter is not None for way in own)


@pytest.mark.parametrize("attach", [EXECVE, "syscall:execve"])
@pytest.mark.parametrize("release", RELEASES)
def test_strings_with_their_pointers(tmp_path: Path, release: str, attach: str) -> None:
    keys = f"attach: '{attach}', {ARGV}, {counted('argv')}"
    where = kernel(release)
    ways = planned(tmp_path, keys, where) if attach == EXECVE else begins(tmp_path, keys, where)
    spec = [way for way in ways if isinstance(way, ProbeSpec) and way.file][-1]
    argv = "+0($argv)" if release in EPROBES else "+0(+104($arg1))"
    assert spec.body.endswith(f" pointers_1={argv}:x64[4] argv={argv}:ustring[3]")
    (text,) = (arg for arg in spec.layout.args if arg.name == "argv")
    assert (text.kind, text.guards) == ("vector", ("pointers_1",))
    assert "pointers_1" in spec.layout.hidden


def test_strings_take_pages(tmp_path: Path) -> None:
    where = replace(kernel("6.12"), binary=False)
    [refused] = planned(tmp_path, f"attach: '{EXECVE}', {ARGV}, {counted('argv')}", where)
    assert isinstance(refused, Unsupported)
    assert refused.reason == "the strings of 'argv' are joined from pages only: write source: auto"


@pytest.mark.parametrize(
    ("fetch", "name"),
    [("", "filename_ustring"), (FILE, "file"), ("fetch: {filename_ustring: flags}", "filename_ustring_")],
)
def test_filter_on_string(tmp_path: Path, fetch: str, name: str) -> None:
    keys = f"attach: '{OPENAT}', filter: 'filename.ustring ~ \"/etc/*\"', aggregate: events"
    spec = first(planned(tmp_path, f"{keys}{', ' if fetch else ''}{fetch}", kernel("6.1")))
    assert spec.filter == f'{name} ~ "/etc/*"'
    assert f" {name}=+0($filename):ustring" in spec.body
    keys = keys.replace(OPENAT, "syscall:openat")
    [joined] = planned(tmp_path, keys, kernel("6.1"))
    assert isinstance(joined, JoinedSpec)
    assert joined.residual_filter is not None
    assert joined.residual_filter.fields == ("filename_ustring",)


def test_as_many_values_as_the_kernel_takes(tmp_path: Path) -> None:
    def keys(number: int) -> str:
        values = ", ".join(f"v{i}: '+{i}($filename):u8'" for i in range(number))
        return f"attach: '{OPENAT}', fetch: {{{values}}}, aggregate: events"

    spec = first(planned(tmp_path, keys(128), kernel("6.1")))
    assert len(spec.layout.args) == 128
    many = planned(tmp_path, keys(128) + ", metrics: [{counter: a_total, labels: [comm]}]", kernel("6.1"))
    reasons = [way.reason for way in many if isinstance(way, Unsupported)]
    assert "with those that the agent adds it has 129 arguments, of 128 at most: fetch less" in reasons


@pytest.mark.parametrize(
    ("release", "keys", "reason"),
    [
        (
            "6.18",
            f"attach: '{OPENAT}', {FILE}, {counted('file')}",
            "'file' is behind a field, which only an eprobe can follow: attach to kprobe:sys_openat, which"
            " has the arguments as $arg1 and so on",
        ),
        (
            "6.12",
            f"attach: '{STATE}', fetch: {{a: '+14($skaddr):u16'}}, {counted('a')}",
            "'a' is behind a field, which only an eprobe can follow: attach to a function that has the value,"
            " as kprobe:FUNCTION, and fetch its $arg1 and so on",
        ),
        (
            "6.12",
            f"attach: '{OPENAT}', fetch: {{a: '+0($filname):ustring'}}, {counted('a')}",
            "the tracepoint sys_enter_openat has no field 'filname', did you mean 'filename'?",
        ),
        (
            "6.12",
            f"attach: '{OPENAT}', fetch: {{a: '+0($flags):ustring'}}, {counted('a')}",
            "the field 'flags' is int, no address",
        ),
    ],
)
def test_refusals(tmp_path: Path, release: str, keys: str, reason: str) -> None:
    ways = planned(tmp_path, keys, kernel("6.12" if release == "6.18" else release))
    assert reason in [way.reason for way in ways if isinstance(way, Unsupported)]
