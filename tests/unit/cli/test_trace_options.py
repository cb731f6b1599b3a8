"""`trace`: options that do not go together are refused in one sentence, which names what to do instead."""

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main

EACH_ITS_STACK = "the two events of a call have a stack each: trace its entry, as kprobe:FUNCTION."
NO_KERNEL_STACK = "the kernel has no stack behind a program's code: give -u for the program's own."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-s", "call:vfs_read", "duration > 1ms"], EACH_ITS_STACK),
        (["-s", "call:vfs_read count"], EACH_ITS_STACK),
        (["-s", "--json", "call:vfs_read"], EACH_ITS_STACK),
        (["-u", "call:vfs_read"], EACH_ITS_STACK),
        (["-s", "uprobe:libc.so.6:write"], NO_KERNEL_STACK),
        (["-s", "ucall:libc.so.6:write"], NO_KERNEL_STACK),
        (["-s", "p:/bin/bash:0x1234"], NO_KERNEL_STACK),
        (["-u", "--json", "call:vfs_read"], EACH_ITS_STACK),
        (["-s", "-u", "--json", "p:vfs_read"], "--json shows one stack of an event: give -s or -u."),
        (
            ["-u", "--count", "p:vfs_read"],
            "--count shows no program's stack: give --json, --folded, --flame FILE or -u alone.",
        ),
        (["call:vfs_* count"], "a pattern takes no arguments here, name one event, at ^ in '^count'."),
    ],
)
def test_refusals(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, ["trace", *arguments])
    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith(sentence)
