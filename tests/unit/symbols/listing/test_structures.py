"""Structures as `list` prints them: every member with its offset."""

from pathlib import Path

import pytest

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.symbols.listing.details import parameters, structure
from tests.support.btf_samples import Blob, structures

DATA = structures().data()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sys/kernel/btf").mkdir(parents=True)
    (tmp_path / "sys/kernel/btf/vmlinux").write_bytes(DATA)
    return tmp_path


@pytest.mark.parametrize("written", ["sock_common", "struct sock_common"])
def test_a_whole_structure(root: Path, written: str) -> None:
    assert structure(written, root) == [
        "struct sock_common, 136 bytes",
        "       0  skc_daddr     __be32",
        "      12  skc_portpair  unsigned int",
        "      12  skc_dport     __be16",
        "      14  skc_num       unsigned short",
        "      18  skc_state     volatile u8",
        "    19:0  skc_reuse     u8:4",
        "    19:5  skc_ipv6only  u8:1",
        "    20:0  skc_signed    int:3",
        "    24:7  skc_wide      unsigned long:60",
        "      40  skc_prot      struct proto *",
    ]


def test_all_structures_of_a_name(root: Path) -> None:
    blob = Blob()
    number = blob.int_("u32", 32)
    blob.struct("slot", 4, ("first", number, 0))
    blob.struct("slot", 8, ("second", number, 32))
    (root / "sys/kernel/btf/vmlinux").write_bytes(blob.data())
    lines = ["struct slot, 4 bytes", "    0  first  u32", "struct slot, 8 bytes", "    4  second  u32"]
    assert structure("slot", root) == lines


def test_a_name_that_is_not_there(root: Path) -> None:
    with pytest.raises(GrammarError, match="this kernel has no structure 'sokc', did you mean 'sock' or"):
        structure("sokc", root)
    with pytest.raises(GrammarError, match="there are no types of the module ext"):
        structure("ext:sock", root)


def test_what_is_behind_a_functions_parameters() -> None:
    lines = list(parameters(KernelTypes(lambda name: DATA), "", "f"))
    assert [line for line in lines if not line.startswith(" ")] == [
        "struct gendisk *$retval",
        "struct sock *sk",
        "struct sock *tagged",
    ]
    assert "    12  $retval->disk_name  char [32]" in lines
    assert "    512  sk->sk_cookie      unsigned long" in lines
