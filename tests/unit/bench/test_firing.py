"""bench.firing: the table of what a firing takes."""

from tests.bench.firing import tabulated


def test_a_row_of_each_kind() -> None:
    programs = {"tracepoint": 700.0, "uprobe": 12_700.0, "uretprobe": 14_000.0}
    emulated = {**programs, "kprobe": 880.0, "kretprobe": 1300.0}
    here = {"tracepoint": 42.0, "uprobe": 2540.0, "uretprobe": 2700.0}
    table = tabulated(here, {"6.1": emulated, "6.12": emulated})
    assert table.head == ("kind", "6.1, emulated", "6.12, emulated", "this machine", "times", "constant")
    assert table.rows[0] == ("tracepoint", "700", "700", "42", "16.7", "60")
    assert table.rows[3] == ("kprobe", "880", "880", "", "", "180")
    assert "(5.0 times in this run)" in table.notes[0]
