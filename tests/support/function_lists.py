"""Lists of functions as tracefs has them."""

from collections.abc import Callable, Iterable

from kprobe_exporter.symbols.lists import Lists

BLACKLIST = b"0xffffffff81000070-0xffffffff81000078\tkeeps_off\n"

MODULES = b"ext4 1130496 1 - Live 0xffffffffc0000000\nxfs 1 0 - Live 0x0\n"

NAMES = [
    *("vfs_read", "vfs_raed", "do_sys_open", "twice", "keeps_off", "__x64_sys_getppid", "notraced"),
    *("jiffies", "ext4_open", "notraced_there", "_do_fork", "shrink", "nothing_like_it", "shared_name"),
    *("vfs_write.cold", "notraced.cold"),
]

TRACEABLE = b"""vfs_read
vfs_write
vfs_writev
Vfs_odd
tcp_ack.isra.0
tcp_push.isra.0
tcp_push.constprop.0
tcp_rcv
tcp_rcv.part.0
tcp_slow.part.0.isra.0
notraced.constprop.0
twice
twice
keeps_off
keeps_off_there [ext4]
both_places
both_places [ext4]
ext4_open [ext4]
ext4_make.isra.0 [ext4]
everywhere [ext4]
everywhere [xfs]
__ftrace_invalid_address___42
vfs_write.cold
"""

SYMBOLS = b"""ffffffff81000000 T _text
ffffffff81000010 T vfs_read
ffffffff81000020 T vfs_write
ffffffff81000050 t twice
ffffffff81000060 t twice
ffffffff81000068 d twice
ffffffff82000060 t twice
ffffffff82000000 T _sinittext
ffffffff82001000 T _einittext
ffffffff81000070 T keeps_off
ffffffff81000090 T notraced
ffffffff81000098 t notraced.constprop.0
ffffffff810000b0 t number_of_same_symbols
ffffffff81000100 t both_places
ffffffffc0000010 t ext4_open\t[ext4]
ffffffffc0000020 t both_places\t[ext4]
ffffffffc0000030 t everywhere\t[ext4]
ffffffffc1000030 t everywhere\t[xfs]
"""


def lists_of(*contents: bytes | None) -> Lists:
    """Return lists with these contents, in the order of their names there; None may not be read."""
    return Lists(*map(_read, contents))


def _read(content: bytes | None) -> Callable[[], Iterable[bytes]]:
    def lines() -> Iterable[bytes]:
        if content is None:
            raise PermissionError(1, "Operation not permitted")
        return content.splitlines(keepends=True)

    return lines
