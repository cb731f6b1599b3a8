"""symbols.lists: a few names are found in blocks of kallsyms as in its single lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.symbols.lists import ListedSymbol, symbols
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
