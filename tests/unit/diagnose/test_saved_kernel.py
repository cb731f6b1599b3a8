"""A kernel's files, saved from directories that are laid out as the kernel's, and read back."""

import errno
import json
import lzma
import tracemalloc
from pathlib import Path

import pytest

from kprobe_exporter.config.load import load as load_config
from kprobe_exporter.diagnose import saved_kernel as module
from kprobe_exporter.diagnose.archive import pack, unpack
from kprobe_exporter.diagnose.dry_run import look
from kprobe_exporter.diagnose.saved_kernel import describe, load, save, saved_kernel, take
from kprobe_exporter.errors import GrammarError, UsageError
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.tracefs.files import ReadOnlyTracefs
from kprobe_exporter.tracefs.kernel_files import KernelFiles, running_kernel
from tests.support.fake_tracefs import EXEC_FORMAT
from tests.support.saved_lists import KALLSYMS, SITES, TRACEABLE

FILES = {
    "README": "p:[<group>/][<event>] $arg<N>\n",
    "available_filter_functions": TRACEABLE.decode(),
    "available_filter_functions_addrs": SITES.decode(),
    "kprobe_events": "p:secret_group/secret_event vfs_read path=+0(%di):string\n",
    "uprobe_events": "p:mine/secret /home/alice/program:0x10\n",
    "dynamic_events": "p:mine/secret /home/alice/program:0x10\n",
    "synthetic_events": "secret\tu64 lat\n",
    "set_event_pid": "1234\n",
    "instances/secret/trace": "",
    "events/enable": "0\n",
    "events/header_page": "no page\n",
    "events/header_event": "no event\n",
    "events/sched/enable": "0\n",
    "events/sched/sched_process_exec/format": EXEC_FORMAT,
    "events/sched/sched_process_exec/enable": "0\n",
    "events/sched/sched_process_exec/hist": "",
    "events/secret_group/enable": "0\n",
    "events/secret_group/secret_event/format": "name: secret\n",
    "events/secret_group/secret_event/enable": "0\n",
    "events/mine/enable": "0\n",
    "events/mine/secret/format": "name: secret\n",
    "events/synthetic/secret/format": "name: secret\n",
}
ROOT = {
    "proc/kallsyms": KALLSYMS.decode(),
    "proc/modules": "ext4 1048576 2 mbcache,jbd2, Live 0xffffffffc0000000\n",
    "proc/sys/kernel/ftrace_enabled": "1\n",
    "sys/kernel/debug/kprobes/blacklist": "0xffffffff9a205000-0xffffffff9a205010\tone\n",
    "sys/kernel/btf/vmlinux": "types",
    "sys/kernel/btf/ext4": "more types",
}

CONFIG = """
probes:
  - {name: read, attach: "kprobe:vfs_read"}
  - name: exec
    attach: tracepoint:sched:sched_process_exec
    metrics: [{counter: execs_total, labels: {comm: comm}}]
  - {name: several, attach: "kprobe:shared"}
  - {name: blacklisted, attach: "kprobe:one"}
  - {name: near, attach: "tracepoint:sched:sched_process_exe"}
  - {name: call, attach: "kprobe:sys_getppid"}
  - {name: pattern, attach: "kprobe:vfs_*"}
  - {name: quiet, attach: ["kprobe:quiet", "kprobe:ext4:ext4_open"]}
  - {name: program, attach: ["uprobe:/no/such/program:main", "kprobe:vfs_read"]}
  - {name: program_second, attach: ["kprobe:no_such", "ucall:/no/such/program:main"]}
"""


@pytest.fixture
def running(tmp_path: Path) -> KernelFiles:
    tracefs, root = tmp_path / "tracing", tmp_path / "root"
    for base, files in ((tracefs, FILES), (root, ROOT)):
        for path, text in files.items():
            (base / path).parent.mkdir(parents=True, exist_ok=True)
            (base / path).write_text(text)
    return running_kernel(ReadOnlyTracefs(tracefs), root)


def test_a_saved_kernel_has_the_same_files(running: KernelFiles) -> None:
    saved = saved_kernel(unpack(pack(take(running))))
    assert (saved.release, saved.machine) == (running.release, running.machine)
    assert saved.btf("ext4") == b"more types"
    assert saved.names("sys/kernel/btf") == ["ext4", "vmlinux"] == running.names("sys/kernel/btf")
    assert saved.read("proc/sys/kernel/ftrace_enabled") == b"1\n"
    for path in ("README", "events/header_page", "./events/sched/sched_process_exec/format"):
        assert saved.tracefs.read(path) == running.tracefs.read(path)
    assert saved.tracefs.names("events/sched") == running.tracefs.names("events/sched")
    for path in ("kprobe_events", "./events/sched/sched_process_exec/hist", "events/sched", "instances"):
        assert saved.tracefs.exists(path), path
    for path in ("hist", "events/sched/sched_switch", "events/sched/sched_process_exec/trigger", "../root"):
        assert not saved.tracefs.exists(path), path


def test_what_is_not_saved_is_not_there(running: KernelFiles) -> None:
    saved = saved_kernel(take(running))
    for path in ("kprobe_events", "../proc/kallsyms", "/etc/passwd", "events"):
        with pytest.raises(FileNotFoundError):
            saved.tracefs.read(path)
    with pytest.raises(FileNotFoundError):
        saved.read("etc/passwd")
    with pytest.raises(FileNotFoundError):
        saved.tracefs.names("no")
    with pytest.raises(FileNotFoundError):
        saved.names("no")
    with pytest.raises(OSError, match="Read-only") as error:
        saved.tracefs.write("kprobe_events", "p f")
    assert error.value.errno == errno.EROFS


def test_nothing_of_users_and_no_address_is_saved(running: KernelFiles) -> None:
    files = take(running)
    everything = b"\n".join([*map(str.encode, files), *files.values()])
    for text in (b"secret", b"alice", b"mine", b"1234", b"mbcache", b"ffffffff", b"1048576", b"bpf"):
        assert text not in everything, text


def test_a_check_is_that_of_the_running_kernel(running: KernelFiles, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    loaded = load_config([config], DECODERS)
    saved = saved_kernel(unpack(pack(take(running))))
    live = look(loaded, running, lambda: True, programs=False)
    assert look(loaded, saved, lambda: True, programs=False) == live
    rows = {row.probe: row for row in live}
    states = {name: row.state for name, row in rows.items()}
    assert states == {
        "read": "up",
        "exec": "up",
        "several": "unsure",
        "blacklisted": "down",
        "near": "down",
        "call": "up",
        "pattern_vfs_read": "up",
        "quiet": "up",
        "program": "up",
        "program_second": "unsure",
    }
    assert rows["program"].why[-1] == "else kprobe:vfs_read"
    assert "only 'check --live' there looks" in rows["program"].why[0]
    assert rows["program_second"].target == "ucall:/no/such/program:main"


def test_programs_need_a_kernel_with_uprobes(running: KernelFiles, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("probes: [{name: p, attach: 'uprobe:/no/such/program:main'}]")
    (tmp_path / "tracing/uprobe_events").unlink()
    saved = saved_kernel(take(running))
    (row,) = look(load_config([config], DECODERS), saved, lambda: True, programs=False)
    assert row.state == "down"
    assert "CONFIG_UPROBE_EVENTS" in row.why[0]


def test_lists_that_cannot_be_read_are_left_out(running: KernelFiles, tmp_path: Path) -> None:
    for path in ("proc/kallsyms", "sys/kernel/debug/kprobes/blacklist", "sys/kernel/btf/vmlinux"):
        (tmp_path / "root" / path).unlink()
    (tmp_path / "root/sys/kernel/btf/ext4").unlink()
    (tmp_path / "root/sys/kernel/btf").rmdir()
    files = take(running)
    assert not {"proc/kallsyms", "sys/kernel/btf/vmlinux"} & files.keys()
    assert describe(files).endswith("7 functions, 1 tracepoints, types unknown")


def test_a_file_is_replaced_as_a_whole(running: KernelFiles, tmp_path: Path) -> None:
    path = tmp_path / "kernel.tar.xz"
    path.write_text("old")
    files = take(running)
    size = save(files, path)
    assert path.stat().st_size == size
    assert load(path).kernel.release == running.release
    assert path.read_bytes() == pack(files)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["kernel.tar.xz", "root", "tracing"]


def test_a_link_of_another_user_is_not_written_through(running: KernelFiles, tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "kernel.tar.xz"
    victim.write_text("kept")
    path.symlink_to(victim)
    save(take(running), path)
    assert victim.read_text() == "kept"
    assert not path.is_symlink()


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no/kernel cannot be written: No such file or directory\.$"):
        save({}, tmp_path / "no/kernel")


ABOUT = {"format": 1, "release": "6.1", "machine": "x86_64"}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut short"),
        (b"probes: []\n" * 9, "not a whole xz file"),
        (lzma.compress(b"probes: []\n"), "in the middle of its tar archive"),
        (pack({"a": b""}), "is not a kernel that 'doctor --save' saved"),
        (pack({"kernel.json": b"[" * 100_000}), "is not a kernel"),
        (pack({"kernel.json": b"[]"}), "is not a kernel"),
        (
            pack({"kernel.json": json.dumps({**ABOUT, "format": "\x1b[31m"}).encode()}),
            r"form \\x1b\[31m, and",
        ),
        (pack({"kernel.json": json.dumps({**ABOUT, "release": 6}).encode()}), "has the form"),
        (pack({"kernel.json": json.dumps(ABOUT).encode(), "proc/kallsyms": b"x t f"}), "damaged line"),
    ],
)
def test_a_file_that_is_no_saved_kernel(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "k\n.tar.xz"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=why) as error:
        load(path)
    assert str(error.value).startswith(f"{tmp_path}/k\\n.tar.xz ")
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"nothing cannot be read: No such file or directory\.$"):
        load(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"is not a regular file\.$"):
        load(tmp_path)
    large = tmp_path / "large"
    large.write_bytes(bytes(100))
    monkeypatch.setattr(module, "LARGEST", 99)
    with pytest.raises(UsageError, match="more than 0 MiB"):
        load(large)


def test_the_least_that_can_be_saved() -> None:
    saved = saved_kernel({"kernel.json": json.dumps(ABOUT).encode()})
    assert saved.tracefs.names(".") == []
    with pytest.raises(GrammarError):
        saved_kernel({})


MANY = 40 << 20
"""Bytes that an archive of a few KB may unpack to, here."""


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"tracefs.paths": b"a/" * 20_000}, "has the path 'a/a/"),
        ({"tracefs.paths": b"\n" * MANY}, "has a file 'tracefs.paths' that is larger than a kernel's"),
        ({"tracefs.paths": b"a/b" * 100}, "has the path 'a/ba/"),
        ({"proc/kallsyms": b"\n" * MANY}, "has a file 'proc/kallsyms' that is larger than a kernel's"),
        ({"proc/kallsyms": b"- t f\n" * (MANY // 6)}, "has a file 'proc/kallsyms' that is larger"),
        ({"tracefs/available_filter_functions": b"f\n" * (MANY // 2)}, "that is larger than a kernel's"),
        ({"tracefs/events/a/b/format": bytes(2 << 20)}, "that is larger than a kernel's"),
        ({f"{'a/' * 60}{number}": b"" for number in range(3)}, "has the path 'a/a/"),
        ({"kernel.json": b'{"format": [%s0]}' % (b"[]," * (MANY // 3))}, "is not a kernel"),
    ],
    ids=range(9),
)
def test_archive_bombs(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    """A path of 20,000 components took 400 MB, and of 200,000 in an archive of 336 bytes 14 GB."""
    path = tmp_path / "saved"
    path.write_bytes(pack({"kernel.json": json.dumps(ABOUT).encode(), **files}))
    size = path.stat().st_size
    assert size < 64 << 10
    tracemalloc.start()
    with pytest.raises(UsageError) as caught:
        load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reason in str(caught.value)
    assert peak < 3 * MANY
