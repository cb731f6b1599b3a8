"""The configurations and manifests that are shipped name no processor, so that each serves all machines."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROCESSOR = re.compile(
    r"x86|__x64_|amd64|i[36]86|aarch64|arm64|armv|ppc64|s390|riscv"  # paths, functions, labels of nodes
    r"|%[er]?[abcd]x\b|%[er]?[sd]i\b|%[er]?[sbi]p\b|%[rxw]\d+\b"  # registers
    r"|\$arg1\):[su]\d"  # a register that the program left, at the offset that one processor has
)

SHIPPED = sorted(
    path
    for directory in ("examples", "deploy", "kprobe_exporter/config")
    for path in (ROOT / directory).rglob("*")
    if path.suffix in (".yaml", ".yml", ".service", ".conf", ".default") and path.is_file()
)


def processors(text: str) -> list[str]:
    """Return what names a processor outside of comments, which may quote other tools."""
    return [
        found[0] for line in text.splitlines() if (found := PROCESSOR.search(re.sub(r"(^|\s)#.*", "", line)))
    ]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_processor_is_named(path: Path) -> None:
    assert processors(path.read_text()) == []


def test_there_are_such_files() -> None:
    names = {path.name for path in SHIPPED}
    assert {"default.yaml", "probes.yaml", "disk.yaml", "spans.yaml", "kprobe_exporter.service"} <= names


@pytest.mark.parametrize(
    "line",
    [
        "- uprobe:/usr/lib/x86_64-linux-gnu/libc.so.6:malloc",
        "attach: call:__arm64_sys_fsync",
        "kubernetes.io/arch: amd64",
        'fetch: {file: "+0(%si):string"}',
        'fetch: {request: "+112($arg1):s64"}',
    ],
)
def test_a_processor_is_found(line: str) -> None:
    assert processors(line)
