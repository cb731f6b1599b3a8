"""One filter in the kernel for all probes that read a tracepoint's own event."""

from kprobe_exporter.tracefs.kept_settings import ALL_PASS, LONGEST, SharedFilters


def test_what_any_of_them_needs_passes() -> None:
    filters = SharedFilters()
    assert filters.text("e") == ALL_PASS
    filters.add("e", "a == 1")
    filters.add("f", "z == 1")
    assert filters.text("e") == "a == 1"
    filters.add("e", "a == 1")
    assert filters.text("e") == "a == 1"
    filters.add("e", "b > 2 && c < 3")
    assert filters.text("e") == "(a == 1) || (b > 2 && c < 3)"
    filters.add("e", None)
    assert filters.text("e") == ALL_PASS
    filters.remove("e", None)
    filters.remove("e", "a == 1")
    assert filters.text("e") == "(a == 1) || (b > 2 && c < 3)"
    filters.remove("e", "a == 1")
    assert filters.text("e") == "b > 2 && c < 3"
    filters.remove("e", "b > 2 && c < 3")
    assert filters.text("e") == ALL_PASS
    assert filters.text("f") == "z == 1"


def test_a_filter_that_is_too_long_for_the_kernel_is_left_to_the_agent() -> None:
    filters = SharedFilters()
    long = "a == 1" + " || a == 12345678" * (LONGEST // 34)
    filters.add("e", long)
    filters.add("e", "a == 2")
    assert filters.text("e") == f"({long}) || (a == 2)"
    filters.add("e", f"{long} || a == 3")
    assert filters.text("e") == ALL_PASS
