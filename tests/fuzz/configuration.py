"""Fuzzes the configuration: the text and the values of the examples and of the packaged one."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random

import yaml

from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.config.load import load
from kprobe_exporter.errors import ConfigError, Problem
from kprobe_exporter.labels import DECODERS
from tests.fuzz.mutate import Mutator
from tests.fuzz.target import ROOT, Input, Take, Target, scratch
from tests.fuzz.trees import Trees

YAML = (
    *(b"&a ", b"*a", b"!!python/object:os.system ", b"!!binary |", b"<<: ", b"? ", b"- ", b": "),
    *(b"|\n  ", b">-\n  ", b"%YAML 9.9\n", b"---\n", b"...\n", b"{" * 50, b"[" * 50, b"- " * 50),
    *(b"\\ud800", b"\\x00", b".inf", b".nan", b"0o7777", b"0x" + b"f" * 400, b"1e400", b"2001-01-01"),
    *(b"~", b"yes", b"\t- a", b"'", b"probes:\n"),
)
VALUES = (
    *("kprobe:f", "kprobe:f*", "kretprobe:f+1", "tracepoint:a:b", "uprobe:/bin/x:f@V", "call:f"),
    *("ucall:/a:f", "syscall:openat", "pair", "fentry:f", "fexit:m:f", "return < 0"),
    *('comm ~ "a*" && !(pid == 1 || a & 2)', "+0(+8($arg1)):string", "$stack0:x8[64]", "@0xffff"),
    *("%di:b1@0/8", "\\-1:s8", "$retval:ustring[2]", "kernel", "p:a/b f x=$arg1:u8", "r5:g/B f $retval"),
    *("e:x a.b c=$d:symbol", "f:a f%return", "1h30m", "64KiB", "99999999TiB"),
    *({"linear": {"start": 0, "width": 1, "count": 3}}, {"exp2": {"min": 1e-6, "count": 64}}),
    *("${HOME}", "${"),
    *({"attach": ["kprobe:a", {"attach": "kprobe:b", "fetch": {"x": "$arg1"}}]}, {"from": "a", "to": "b"}),
)
ENVIRONMENT = {"TOKEN": "secret", "EMPTY": ""}


@cache
def texts() -> Mutator:
    """Mutates whole files, and single probes."""
    files = [file.read_bytes() for file in _files()]
    probes = [b"probes:\n  - " + part for file in files for part in file.split(b"\n  - ")[1:]]
    return Mutator([*files, *probes], YAML)


@cache
def trees() -> Trees:
    """Mutates documents of one or two probes, which load quickly."""
    whole = [yaml.safe_load(file.read_bytes()) for file in _files()]
    small = [
        {**document, "probes": document["probes"][at : at + 2]}
        for document in whole
        for at in range(len(document.get("probes", ())))
    ]
    return Trees(small, VALUES)


def make(random: Random) -> Input:
    if random.random() < 0.25:
        return Input("text", texts()(random))
    return Input("values", trees()(random))


@contextmanager
def taking() -> Iterator[Take]:
    with scratch() as directory:
        file = directory / "c.yaml"

        def take(given: Input) -> bool:
            file.write_bytes(given.data)
            problems = _problems(file)
            assert all(f"{one.path}: {one.message}".isprintable() for one in problems)
            assert all(one.line > 0 < one.column for one in problems)
            return not problems

        yield take


def _problems(file: Path) -> tuple[Problem, ...]:
    try:
        load([file], DECODERS, ENVIRONMENT)
    except ConfigError as error:
        return error.problems
    return ()


def _files() -> list[Path]:
    return [DEFAULT, *sorted((ROOT / "examples").rglob("*.yaml"))]


TARGET = Target("configuration", make, taking)
