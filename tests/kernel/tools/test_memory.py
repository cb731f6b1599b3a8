"""The stacks that keep memory, of a program and of the kernel, against blocks that are known to be kept."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.compiling import compiled
from tests.support.folded import parsed
from tests.support.trace_process import StartTrace, TraceProcess

LEAKING = """
#include <stdlib.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline)) void *
FUNCTION kept(void) { void *at = malloc(1024); __asm__(""); return at; }
FUNCTION used(void) { void *at = malloc(1024); __asm__(""); return at; }
FUNCTION moved(void) { void *at = malloc(1024); __asm__(""); return at; }
FUNCTION grown(void *at) { at = realloc(at, 100000); __asm__(""); return at; }
int main(void) {
    char byte;
    read(0, &byte, 1);
    for (int turn = 0; turn < 200; turn++) {
        void *at = used(), *next = moved(), *fence = used();
        if (turn < 37) kept();
        free(at);
        next = grown(next);
        if (turn >= 11) free(next);
        free(fence);
    }
    write(1, "x", 1);
    read(0, &byte, 1);
    return 0;
}
"""

CHUNK = 1024 + 16
"""Bytes of a block of 1 KiB in glibc, with the word in front of it, as a multiple of 16."""


def of(stacks: dict[tuple[str, ...], int], function: str) -> int:
    """Return the sum of the stacks that go through a function."""
    return sum(number for frames, number in stacks.items() if any(function in one for one in frames))


def shown_leaks(trace: StartTrace, program: Path, scope: Sequence[str]) -> TraceProcess:
    """Run memleak while a program does its work, which it begins and ends when it reads a byte."""
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        given = [one.format(pid=running.pid) for one in scope]
        tool = trace("memleak", "-v", *given, command="tool")
        tool.wait_until_tracing()
        os.write(running.stdin.fileno(), b"x")
        running.stdout.read(1)
        time.sleep(0.7)
        assert tool.end() == 0, tool.errors
        running.communicate(b"x")
    return tool


@pytest.mark.parametrize("scope", [("-p", "{pid}"), ("--comm", "leaking")], ids=["pid", "comm"])
def test_blocks_that_a_program_keeps(trace: StartTrace, tmp_path: Path, scope: Sequence[str]) -> None:
    """37 blocks of 1 KiB are never freed, and 11 that were moved; the others are no leaks."""
    program = compiled(tmp_path / "leaking", LEAKING, "-fno-omit-frame-pointer")
    tool = shown_leaks(trace, program, scope)
    stacks = parsed(tool.output.decode())
    assert "lost" not in tool.errors
    assert of(stacks, "leaking`kept") == 37 * CHUNK
    assert 11 * 100_000 <= of(stacks, "leaking`grown") <= 11 * 100_100
    assert of(stacks, "leaking`used") == of(stacks, "leaking`moved") == 0


def test_what_is_younger_is_left_out(trace: StartTrace, tmp_path: Path) -> None:
    program = compiled(tmp_path / "leaking", LEAKING, "-fno-omit-frame-pointer")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        tool = trace("memleak", "-v", "-p", str(running.pid), "-o", "1h", command="tool")
        tool.wait_until_tracing()
        assert running.stdin is not None
        os.write(running.stdin.fileno(), b"x")
        running.stdout.read(1)
        assert tool.end() == 0, tool.errors
        running.communicate(b"x")
    assert tool.output == b""


MANY = """
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    char byte;
    read(0, &byte, 1);
    for (int turn = 0; turn < 66000; turn++) { void *at = malloc(16); __asm__("" : : "r"(at)); }
    write(1, "x", 1);
    read(0, &byte, 1);
    return 0;
}
"""


def test_blocks_beyond_the_bound_are_told(trace: StartTrace, tmp_path: Path) -> None:
    """65,536 blocks are kept; the oldest 1,024 make room at a time."""
    program = compiled(tmp_path / "leaking", MANY, "-fno-omit-frame-pointer")
    tool = shown_leaks(trace, program, ("-p", "{pid}"))
    assert "1,025 that were open are in no stack because too many were open" in tool.errors
    assert "ring buffer" not in tool.errors


def test_memory_that_the_kernel_keeps(trace: StartTrace) -> None:
    """A pipe has 16 buffers of 40 bytes, in a block of 1 KiB, until it is closed."""
    tool = trace("memleak", "-k", "-v", command="tool")
    tool.wait_until_tracing()
    kept = [os.pipe() for _ in range(37)]
    for _ in range(200):
        for end in os.pipe():
            os.close(end)
    time.sleep(0.7)
    assert tool.end() == 0, tool.errors
    for end in [end for pair in kept for end in pair]:
        os.close(end)
    pipes = of(parsed(tool.output.decode()), "alloc_pipe_info")
    assert 37 * 1024 <= pipes < 60 * (1024 + 256), "with those of other processes"
