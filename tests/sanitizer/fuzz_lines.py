"""Feeds damaged lines to a counter of lines that was built with sanitizers, the file that SANITIZED names."""

import importlib.util
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

INTERESTING = b"-[](): .\n\x00\xff09"


def main() -> None:
    rounds, seed = int(sys.argv[1]), int(sys.argv[2])
    random = Random(seed)
    counter = _load(Path(os.environ["SANITIZED"])).LineCounter()
    counted = learnt = full = 0
    for number in range(rounds):
        text = damaged_lines(random)
        exact = bytes(bytearray(text))  # an allocation of its own, so that the byte behind it is guarded
        at = 0
        while at < len(exact):
            after = counter.scan(exact, at, random.randint(at, len(exact)))
            assert at <= after <= len(exact)
            start = exact.find(b": ", after) + 2
            end = exact.find(b"\n", start)
            if 1 < start <= end and random.random() < 0.5:
                if counter.learn(exact, start, end, random.random() < 0.3, random.random() < 0.3) is None:
                    full += 1
                    counter.take()
                    counter.clear()
                learnt += 1
            at = max(after, exact.find(b"\n", after) + 1 or len(exact))
        if number % 50 == 0:
            counted += sum(lines for *_, lines in counter.take())
            assert all(0 <= cpu < 8192 for cpu in counter.lasts())
    assert counted > rounds
    print(f"{rounds} texts, {counted} lines counted, {learnt} learnt, {full} times it was full")


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("kprobe_exporter.source._lines", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def damaged_lines(random: Random) -> bytes:
    """Some lines as the kernel writes them, then damaged."""
    lines = bytearray()
    for _ in range(random.randrange(1, 8)):
        group = random.choice([b"", b"", b"(   70) ", b"(-----) "])
        flags = random.choice([b"d..1. ", b"d..1 ", b""])
        body = b"open: (f+0x0/0x1) a=%d" % random.randrange(20) + b"x" * random.choice([0, 0, 7, 3000])
        tid, cpu = random.randrange(1000), random.choice([0, 1, 8191, 8192])
        micros = random.randrange(10**6)
        lines += b"%16s-%-7d %s[%03d] %s %5d.%06d: %s\n" % (b"cat", tid, group, cpu, flags, 1, micros, body)
    for _ in range(random.choice([0, 0, 1, 4])):
        lines[random.randrange(len(lines))] = random.choice(INTERESTING)
    return bytes(lines[: random.randrange(1, len(lines) + 1)]) if random.random() < 0.5 else bytes(lines)


if __name__ == "__main__":
    main()
