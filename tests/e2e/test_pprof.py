"""What `go tool pprof` reads of the profile that the agent serves: the same stacks, with the same weights."""

import os
import re
import subprocess
import urllib.request
from pathlib import Path

from kprobe_exporter.model.snapshot import Snapshot
from kprobe_exporter.model.stacks import Profile, Weight
from kprobe_exporter.web.routes import create_app
from tests.support.web_target import Served, serving
from tests.vm.debian import pprof

SECOND = 1_000_000_000
STACKS = {
    (b"vfs_read", b"ksys_read", b"do_syscall_64"): Weight(3, 7 * SECOND),
    (b"vfs_write", b"ksys_write", b"do_syscall_64"): Weight(1, 2**62),
    (b"a line\n     9: 0x0 M=1 forged :0 s=0\xff", b"kthread"): Weight(2, 11),
}
BEGAN = 1_700_000_000
PROFILE = Profile("waits", "duration", STACKS, 5, BEGAN * SECOND, (BEGAN + 8) * SECOND)


def test_it_reads_the_same_stacks(tmp_path: Path) -> None:
    app = create_app(lambda: Snapshot((), ()), lambda: None, profile=lambda name: PROFILE)
    with serving(Served(app)) as served:
        file = tmp_path / "waits.pb.gz"
        urllib.request.urlretrieve(f"http://127.0.0.1:{served.port}/debug/pprof/waits", file)
    home = {**os.environ, "HOME": str(tmp_path)}  # where it looks for symbols
    text = subprocess.run(
        [pprof(), "-raw", file], env=home, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert "hits/count duration/nanoseconds[dflt]" in text
    assert "Time: 2023-11-14 22:13:20 +0000 UTC" in text
    assert "Duration: 8s" in text
    assert f"Comment: {PROFILE.lost} hits are missing" in text
    samples, _, locations = text.partition("Locations\n")
    names = dict(re.findall(r"^ +(\d+): 0x0 M=1 (.*) :0 s=0", locations, re.MULTILINE))
    found = {
        tuple(names[place] for place in places.split()): Weight(int(hits), int(total))
        for hits, total, places in re.findall(r"^ +(\d+) +(\d+): ([\d ]+)$", samples, re.MULTILINE)
    }
    [hostile] = [stack for stack in found if stack[1:] == ("kthread",)]
    assert hostile[0].startswith("a line\\n")
    assert found.pop(hostile) == Weight(2, 11)
    assert found.pop(("[hits_lost]",)) == Weight(PROFILE.lost, 0)
    assert found == {
        tuple(map(bytes.decode, stack)): weight for stack, weight in STACKS.items() if b"kthread" not in stack
    }
    assert len(names) == len({frame for stack in STACKS for frame in stack}) + 1
