"""Records of a function's return, for the tests of what is counted of them."""

from kprobe_exporter.model.records import Layout, Record
from kprobe_exporter.model.values import Arg, ReturnType

LONG = ReturnType("long", "s64", signed=True, wide=True)
INT = ReturnType("int", "s32", signed=True)
PTR = ReturnType("ptr", "x64", pointer=True)
U64 = ReturnType("u64", "u64")


def layout(returns: ReturnType | None = LONG) -> Layout:
    args = (Arg("return", "int"), Arg("count", "int"), Arg("comm", "str"))
    return Layout(3, "p", "p", "return", "vfs_read", args, returns)


def record(returned: object = 0, count: object = 0, comm: object = b"bash") -> Record:
    return (3, 1_000, 2, 77, 66, b"ksys_read", returned, count, comm)
