"""symbols.lists: a few names are found in blocks of kallsyms, and in the list of functions, as in all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.symbols.lists import FEW, ListedSymbol, TraceableFunctions, symbols, traceable
from kprobe_exporter.tracefs import kernel_files
from kprobe_exporter.tracefs.kernel_files import running_kernel
from tests.support.fake_tracefs import FakeTracefs

NAMES = ("vfs_read", "read", "vfs", "sys_read", "__x64_sys_read", "t")
LINES = st.builds(
    "{:x} {} {}{}\n".format,
    st.integers(0, 0xFF),
    st.sampled_from("tTwWdD"),
    st.sampled_from(NAMES),
    st.sampled_from(("", "\t[read]", "\t[ext4]")),
)


def by_line(text: str, wanted: set[str]) -> dict[str, list[ListedSymbol]]:
    found: dict[str, list[ListedSymbol]] = {}
    for line in text.splitlines():
        address, kind, name, *module = line.split()
        if name in wanted:
            one = ListedSymbol(int(address, 16), kind, "".join(module).strip("[]"))
            found.setdefault(name, []).append(one)
    return found


@given(st.lists(LINES).map("".join), st.sets(st.sampled_from(NAMES)), st.integers(1, 80), st.booleans())
def test_in_blocks_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, text: str, wanted: set[str], size: int, ended: bool
) -> None:
    """The last line may lack its end."""
    content = text if ended else text.removesuffix("\n")
    root = tmp_path_factory.mktemp("root")
    (root / "kallsyms").write_text(content)
    kernel = running_kernel(FakeTracefs(tmp_path_factory.mktemp("fake"), set()), root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_files, "BLOCK", size)
        blocks = list(kernel.blocks("kallsyms"))
    assert b"".join(blocks).decode() == content
    assert all(block.endswith(b"\n") for block in blocks[:-1])
    names = {name.encode() for name in wanted}
    many = names | {b"absent%d" % number for number in range(40)}
    assert symbols(blocks, names) == symbols(blocks, many) == by_line(content, wanted)


FUNCTIONS = ("vfs_read", "vfs_readv", "read", "tcp_ack.isra.0", "f.part.0.isra.0", ".cold")
FUNCTION_LINES = st.builds(
    "{}{}".format, st.sampled_from(FUNCTIONS), st.sampled_from(("", " [ext4]", " [xfs]"))
)


@given(st.lists(FUNCTION_LINES), st.lists(st.sampled_from((*FUNCTIONS, "vfs", "x", "")), max_size=9))
def test_functions_asked_for_one_by_one(lines: list[str], asked: list[str]) -> None:
    content = [line.encode() for line in lines]
    whole, found = traceable(content), TraceableFunctions(content)
    assert [found.get(name) for name in asked] == [whole.get(name) for name in asked]
    assert bool(found) == bool(whole)
    assert found.dotted == [name for name in whole if "." in name]
    assert "_all" not in vars(found)
    assert dict(found) == whole


def test_list_of_functions_is_parsed_once_many_are_asked_for() -> None:
    names = [f"f{number}" for number in range(2 * FEW)]
    found = TraceableFunctions([name.encode() for name in names])
    assert [found[name] for name in names[:FEW]] == [[""]] * FEW
    assert "_all" not in vars(found)
    assert [found[name] for name in names] == [[""]] * len(names)
    assert "f" not in found
    assert len(found) == len(names)
