"""config.model: how return values are read."""

import pytest

from kprobe_exporter.config.model import return_type
from kprobe_exporter.model.values import ReturnType
from tests.unit.config.conftest import Load


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("int", ReturnType("int", "s32", signed=True)),
        ("long", ReturnType("long", "s64", signed=True)),
        ("ssize_t", ReturnType("ssize_t", "s64", signed=True)),
        ("unsigned  int", ReturnType("unsigned int", "u32")),
        ("unsigned long", ReturnType("unsigned long", "u64")),
        ("size_t", ReturnType("size_t", "u64")),
        ("bool", ReturnType("bool", "u8")),
        ("s16", ReturnType("s16", "s16", signed=True)),
        ("ptr", ReturnType("ptr", "x64", pointer=True)),
        ("struct file *", ReturnType("struct file *", "x64", pointer=True)),
        ("const char *", ReturnType("const char *", "x64", pointer=True)),
        ("void", ReturnType("void", None)),
        ("void *", ReturnType("void *", "x64", pointer=True)),
    ],
)
def test_return_type(name: str, expected: ReturnType) -> None:
    assert return_type(name) == expected


@pytest.mark.parametrize(
    ("keys", "wide"),
    [
        ("attach: 'kretprobe:f'", True),
        ("attach: 'kretprobe:f', returns: long", False),
        ("attach: 'uretprobe:/bin/sh:f'", True),
        ("attach: 'uretprobe:/bin/sh:f', returns: long", False),
        ("attach: 'syscall:lseek'", False),
    ],
)
def test_only_a_guessed_type_is_wide(config: Load, keys: str, wide: bool) -> None:
    """4294967274 is EINVAL of an int that was read as a long, and a long's own value."""
    [probe] = config(f"probes: [{{name: p, {keys}}}]").probes
    [returns] = [one.returns for one in probe.attach[0].single if one.returns]
    assert (returns.name, returns.wide) == ("long", wide)


@pytest.mark.parametrize("name", ["", "float", "struct file", "*", "int\0", "u128"])
def test_unknown_return_type(name: str) -> None:
    with pytest.raises(ValueError, match="is not known: write int, long, ptr"):
        return_type(name)
