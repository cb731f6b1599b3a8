"""Targets on a real kernel: patterns, suffixes, shared names, fprobes, modules that come and go."""

import fnmatch
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.config.model import Attach, Probe, return_type
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.function import function_spec
from kprobe_exporter.symbols.functions import Functions, named_alone
from kprobe_exporter.symbols.lists import Lists
from kprobe_exporter.symbols.resolve import CLONE, Resolver
from kprobe_exporter.tracefs.features import no_fprobes
from kprobe_exporter.tracefs.files import MountedTracefs, ReadOnlyTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import running_kernel
from kprobe_exporter.tracefs.poller import read_counts
from kprobe_exporter.tracefs.probes import Installed, install, names_in_use
from kprobe_exporter.tracefs.profile import buffer_stats
from tests.conftest import has
from tests.support.kernel_ids import kernel_tid
from tests.support.kernel_modules import FUNCTION, MODULE, reads_of_the_size
from tests.vm.kernels import FPROBES

pytestmark = pytest.mark.needs("kprobe_events", "available_filter_functions")

TIMES = 23


@pytest.fixture
def instance(files: MountedTracefs) -> Iterator[Instance]:
    with Instance.acquire(files, "functions_under_test") as made:
        made.set_up(64, record_tgid=False)
        yield made


@pytest.fixture
def resolver(files: MountedTracefs) -> Resolver:
    return Resolver.of(running_kernel(files))


@pytest.fixture(scope="module")
def listed(tracefs: Path) -> list[str]:
    return (tracefs / "available_filter_functions").read_text().splitlines()


def planned(
    instance: Instance, target: Target, returns: str | None = None, only: str | None = None, **fetch: str
) -> ProbeSpec:
    """Return the spec that the agent would plan; raises ProbeRefused if it cannot."""
    way = Attach(target, fetch, only, return_type(returns) if returns else None)
    kernel = Kernel(
        instance.event_format, counts_tracepoints=True, no_fprobes=no_fprobes(running_kernel(instance.files))
    )
    made = function_spec(Probe("p", "help", (way,)), way, set(), kernel, 0, 1000)
    if isinstance(made, Unsupported):
        raise ProbeRefused(f"{made.reason}.")
    return made


def start(instance: Instance, spec: ProbeSpec) -> Installed:
    probe = install(instance, spec, names_in_use(instance))
    probe.enable()
    return probe


def hits(instance: Instance, probe: Installed) -> int:
    return read_counts(instance, [probe]).hits["p"]


def entries(instance: Instance) -> int:
    return buffer_stats(instance.files, instance.path).entries


@pytest.mark.parametrize("pattern", ["tcp_*", "vfs_[!r]*", "*_open", "ext4:*", "[a-z]?????", "*.isra.*"])
def test_a_pattern_names_what_grep_finds(resolver: Resolver, listed: list[str], pattern: str) -> None:
    module, _, names = pattern.rpartition(":")
    blacklist = Path("/sys/kernel/debug/kprobes/blacklist").read_text().splitlines()
    off = {line.split("\t")[1].split(" ")[0] for line in blacklist}
    wanted = set()
    for line in listed:
        name, _, there = line.partition(" ")
        there = there.strip("[]")
        if fnmatch.fnmatchcase(name, names) and module in ("", there) and name not in off:
            wanted.add((name, there))
    wanted = {one for one in wanted if not one[0].startswith("__ftrace_invalid_address__")}
    if not wanted:
        with pytest.raises(ProbeRefused, match="matches no function"):
            resolver.matching(parse_target(f"kprobe:{pattern}"), 10**6)
        return
    found = resolver.matching(parse_target(f"kprobe:{pattern}"), len(wanted))
    assert [(one.symbol, one.module) for one in found] == sorted(wanted)
    with pytest.raises(ProbeRefused, match=f"names {len(wanted)} functions, more than max_matches"):
        resolver.matching(parse_target(f"kprobe:{pattern}"), len(wanted) - 1)


def test_what_a_pattern_names_installs(instance: Instance, resolver: Resolver, random: Random) -> None:
    """A match installs, or is refused for its shared name in the words that `check --live` foretells."""
    found = resolver.matching(parse_target("kprobe:*"), 10**6)
    some = random.sample(found, 100)
    functions = Functions(
        Lists.of(running_kernel(ReadOnlyTracefs(Path("/sys/kernel/tracing")))), (one.symbol for one in some)
    )
    refused = []
    for target in some:
        foretold = functions.answer(target.module, target.symbol, 0)
        spec = planned(instance, resolver.place(target).target)
        try:
            install(instance, spec, names_in_use(instance)).remove()
        except ProbeRefused as error:
            told = resolver.explain(target, error)
            refused.append(target)
            assert "the name stands for more than one" in told or "The symbol is not unique" in told
            assert foretold.can is not True
            assert told.rpartition("; ")[2].rstrip(".") in foretold.why
        else:
            assert foretold.can is not False
    print(refused)
    assert len(refused) < 10


def test_a_tracepoints_pattern(resolver: Resolver, tracefs: Path) -> None:
    found = resolver.matching(parse_target("tracepoint:sched:sched_w*"), 100)
    wanted = sorted(place.parent.name for place in (tracefs / "events/sched").glob("sched_w*/enable"))
    assert [one.event for one in found] == wanted
    assert len(wanted) > 2
    every = resolver.matching(parse_target("tracepoint:sched:*"), 1000)
    assert {"enable", "filter"}.isdisjoint(one.event for one in every)


def test_a_function_that_the_compiler_renamed(
    instance: Instance, resolver: Resolver, listed: list[str]
) -> None:
    names = {line.partition(" ")[0] for line in listed}
    symbols = {line.split()[2] for line in Path("/proc/kallsyms").read_text().splitlines()}
    forms: dict[str, list[str]] = {}
    for name in sorted(names):
        base, dot, _ = name.partition(".")
        if dot and CLONE.fullmatch(name, len(base)):
            forms.setdefault(base, []).append(name)
    once = [base for base, made in forms.items() if len(made) == 1 and base not in symbols]
    assert len(once) > 100
    for base in once[:: len(once) // 5]:
        found = resolver.place(Target(Kind.KPROBE, symbol=base))
        assert found.target.symbol == forms[base][0]
        assert f"'{base}' is compiled as '{forms[base][0]}' here" in found.note
        with pytest.raises(ProbeRefused, match=r"no such function|the kernel says"):
            install(instance, planned(instance, Target(Kind.KPROBE, symbol=base)), set())
    counts = Counter(line.partition(" ")[0] for line in listed)
    single = next(base for base in once if counts[forms[base][0]] == 1)
    install(instance, planned(instance, resolver.place(Target(Kind.KRETPROBE, symbol=single)).target), set())
    several = [base for base, made in forms.items() if len(made) > 1 and base not in symbols]
    for base in several[:3]:
        with pytest.raises(ProbeRefused, match=f"compiled as .*{forms[base][1]}"):
            resolver.place(Target(Kind.KPROBE, symbol=base))


def several(listed: list[str]) -> list[str]:
    """Return up to 4 names that several functions share, the last ones with a function of a module.

    Those are left out off which the kernel keeps kprobes, those that ftrace lists twice for one function, and
    those that one module has twice, as its functions cannot be told apart.
    """
    named = Counter(line.split()[2] for line in Path("/proc/kallsyms").read_text().splitlines())
    blacklist = Path("/sys/kernel/debug/kprobes/blacklist").read_text().splitlines()
    refused = {line.split()[1] for line in blacklist}
    refused |= {line.split()[0] for line, count in Counter(listed).items() if count > 1 and line[-1:] == "]"}
    counts = Counter(line.partition(" ")[0] for line in listed if not line.startswith("__ftrace_invalid"))
    found = [name for name, count in counts.items() if count > 1 and named[name] > 1 and name not in refused]
    of_modules = {line.partition(" ")[0] for line in listed if line.endswith("]")}
    return [*found[:2], *[name for name in found if name in of_modules][:2]]


@pytest.mark.parametrize("kind", [Kind.KPROBE, Kind.KRETPROBE])
def test_a_name_of_several_functions(
    instance: Instance, resolver: Resolver, listed: list[str], tracefs: Path, kind: Kind
) -> None:
    """A shared name is refused, and the message tells the names under which each function installs.

    Linux 7.2 takes the kernel's own function for a name that only modules have besides.
    """
    lists = Lists.of(running_kernel(ReadOnlyTracefs(tracefs)))
    for name in several(listed)[1 if kind.is_return else 0 :: 2]:
        target = Target(kind, symbol=name)
        try:
            install(instance, planned(instance, target), names_in_use(instance)).remove()
        except ProbeRefused as error:
            told = resolver.explain(target, error)
        else:
            assert listed.count(name) == 1
            continue
        forms = list(named_alone(target, lists))
        assert len(forms) > 1
        assert f"; name one of them: {forms[0]}, " in told
        for form in forms[:4]:
            install(instance, planned(instance, form), names_in_use(instance)).remove()


@pytest.mark.needs("available_filter_functions_addrs")
def test_namesakes_where_addresses_are_hidden(
    instance: Instance, listed: list[str], tracefs: Path, tmp_path: Path
) -> None:
    """Without CAP_SYSLOG, offsets count from another function than _text, and name the same addresses."""
    shown = Lists.of(running_kernel(ReadOnlyTracefs(tracefs)))
    (tmp_path / "proc").mkdir()
    hidden = re.sub(r"(?m)^[0-9a-f]{16}", "0" * 16, Path("/proc/kallsyms").read_text())
    (tmp_path / "proc/kallsyms").write_text(hidden)
    blind = Lists.of(running_kernel(ReadOnlyTracefs(tracefs), tmp_path))
    for name in several(listed)[::2]:
        target = Target(Kind.KPROBE, symbol=name)
        seen, unseen = (list(named_alone(target, lists)) for lists in (shown, blind))
        assert {one.module for one in seen} == {one.module for one in unseen}
        distances = {a.offset - b.offset for a, b in zip(seen, unseen, strict=True) if not a.module}
        assert len(distances) <= 1
        install(instance, planned(instance, unseen[-1]), names_in_use(instance)).remove()


GETPPID = "__do_sys_getppid"
"""The one of the names of getppid(2) that ftrace lists."""


@pytest.mark.parametrize(
    ("kind", "returns", "plan"),
    [(Kind.FENTRY, None, "count"), (Kind.FEXIT, "void", "count"), (Kind.FEXIT, "int", "events")],
)
def test_an_fprobe_counts_what_fires(
    instance: Instance, files: MountedTracefs, resolver: Resolver, kind: Kind, returns: str | None, plan: str
) -> None:
    target = Target(kind, symbol=GETPPID)
    if not has(FPROBES):
        other = "kretprobe" if kind.is_return else "kprobe"
        with pytest.raises(ProbeRefused) as refusal:
            planned(instance, target, returns)
        assert str(refusal.value) == (
            f"this kernel has no fprobe events (CONFIG_FPROBE_EVENTS): use {other}:{GETPPID}, or list it as "
            "an alternative."
        )
        return
    spec = planned(instance, resolver.place(target).target, returns, f"common_pid == {kernel_tid()}")
    if plan == "count":
        spec = planned(instance, resolver.place(target).target, returns)
    assert spec.plan == plan
    probe = start(instance, spec)
    before, written = hits(instance, probe), entries(instance)
    for _ in range(TIMES):
        os.getppid()
    assert hits(instance, probe) - before == TIMES
    assert entries(instance) - written == (TIMES if plan == "events" else 0)
    probe.disable()
    if plan == "events":
        line = rf": {probe.event}: \(\S+ <- {GETPPID}\) return={os.getppid()}\n"
        assert len(re.findall(line, instance.read("trace").decode())) == TIMES
    os.getppid()
    assert entries(instance) - written == (TIMES if plan == "events" else 0)


@pytest.mark.needs(FPROBES)
def test_what_an_fprobe_reads(instance: Instance) -> None:
    """An fprobe reads arguments by number and by name, and its text is that of a kprobe."""
    spec = planned(
        instance,
        Target(Kind.FENTRY, symbol="do_sys_openat2"),
        None,
        f"common_pid == {kernel_tid()}",
        path="+0($arg2):ustring",
        dfd="$arg1:s32",
        named="dfd:s32",
    )
    probe = start(instance, spec)
    with pytest.raises(FileNotFoundError):
        os.open("/nonexistent", os.O_RDONLY)
    probe.disable()
    text = instance.read("trace").decode()
    assert re.search(
        r": p: \(do_sys_openat2\+0x\w+/0x\w+\) dfd=-100 named=-100 path=\"/nonexistent\"\n", text
    )


@pytest.mark.needs(FPROBES)
@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("fentry:no_such_function_at_all", "is not among them"),
        ("fentry:do_syscall_64", "is not among them"),
        ("fexit:no_such_module:some_function", "the module 'no_such_module' is not loaded"),
        ("fentry:c_start", "several functions are called 'c_start', and an fprobe would take them all; name"),
    ],
)
def test_what_an_fprobe_cannot_do(resolver: Resolver, written: str, said: str) -> None:
    with pytest.raises(ProbeRefused) as refusal:
        resolver.place(parse_target(written))
    assert said in str(refusal.value)


@pytest.mark.needs(FPROBES)
def test_list_shows_what_an_fprobe_takes() -> None:
    for glob in ("fentry:vfs_rea[d]", "fentry:vfs_read"):
        result = CliRunner().invoke(main, ["list", glob])
        assert (result.exit_code, result.output) == (0, "fentry:vfs_read\n")
    result = CliRunner().invoke(main, ["list", "fentry:do_syscall_64"])
    assert result.exit_code == 1
    assert "is not among them" in result.stderr


def module(command: str) -> None:
    subprocess.run([command, MODULE], check=True)


@pytest.mark.parametrize(
    ("kind", "returns", "plan"),
    [(Kind.KPROBE, None, "count"), (Kind.KRETPROBE, "void", "count"), (Kind.KRETPROBE, "long", "events")],
)
def test_a_module_that_comes_and_goes(
    instance: Instance, resolver: Resolver, no_module: None, kind: Kind, returns: str | None, plan: str
) -> None:
    """A probe that is defined before its module is loaded counts each time that the module is back."""
    found = resolver.place(Target(kind, MODULE, FUNCTION))
    assert found.note == ""
    spec = planned(instance, found.target, returns)
    assert spec.plan == plan
    probe = start(instance, spec)
    for times in (1, 2, 3):
        module("modprobe")
        reads_of_the_size(TIMES)
        assert hits(instance, probe) == times * TIMES
        module("rmmod")
    assert hits(instance, probe) == 3 * TIMES
    probe.remove()


def test_a_modules_function_gets_its_modules_name(
    instance: Instance, files: MountedTracefs, no_module: None
) -> None:
    """The target gets its module's name, because the kernel does not rearm a probe on the plain name."""
    module("modprobe")
    plain = Target(Kind.KPROBE, symbol=FUNCTION)
    found = Resolver.of(running_kernel(files)).place(plain)
    assert found.target == Target(Kind.KPROBE, MODULE, FUNCTION)
    assert f"'{FUNCTION}' is a function of the module '{MODULE}'" in found.note
    probes = [start(instance, planned(instance, target)) for target in (plain, found.target)]
    for expected in ([1, 1], [1, 2]):
        reads_of_the_size(TIMES)
        assert [hits(instance, probe) for probe in probes] == [times * TIMES for times in expected]
        module("rmmod")
        module("modprobe")
    for probe in probes:
        probe.remove()


@pytest.mark.needs(FPROBES)
@pytest.mark.parametrize("kind", [Kind.FENTRY, Kind.FEXIT])
def test_an_fprobe_on_a_modules_function(
    instance: Instance, files: MountedTracefs, no_module: None, kind: Kind
) -> None:
    """An fprobe on a module's function counts while the module is loaded, and unloading does no harm."""
    module("modprobe")
    found = Resolver.of(running_kernel(files)).place(Target(kind, symbol=FUNCTION))
    assert found.target.module == MODULE
    assert f"an fprobe is lost when '{MODULE}' is unloaded" in found.note
    probe = start(instance, planned(instance, found.target, "void" if kind.is_return else None))
    reads_of_the_size(TIMES)
    assert hits(instance, probe) == TIMES
    module("rmmod")
    assert hits(instance, probe) == TIMES
    probe.remove()
