"""Where records hold their values, from the format files of real kernels."""

from dataclasses import replace

import pytest

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import parse_format
from kprobe_exporter.model.record_layout import Field, Geometry, StackLayout
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.shape import geometry, shape, stacks
from tests.unit.captured import KERNELS, Captured, captured

HEADERS = {(file.kernel, file.name): file for file in captured("header_")}
FORMATS = {(file.kernel, file.name): file for file in captured("format/")}


def form(name: str, kernel: str = KERNELS[0]) -> str:
    return FORMATS[kernel, f"format/{name}"].text


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_page_of_real_kernels(kernel: str) -> None:
    texts = [HEADERS[kernel, name].text for name in ("header_page", "header_event")]
    assert geometry(*texts) == Geometry(8, 8, 16, 4096)


@pytest.mark.parametrize(
    ("page", "event", "said"),
    [
        ("", None, "no field 'timestamp'"),
        (None, "", "another 'type_len'"),
        (
            "\tfield: u64 timestamp;\toffset:8;\tsize:8;\n\tfield: local_t commit;\toffset:8;\tsize:8;\n"
            "\tfield: char data;\toffset:16;\tsize:4080;",
            None,
            "a page that is not known",
        ),
    ],
)
def test_a_page_that_is_not_known(page: str | None, event: str | None, said: str) -> None:
    real = [HEADERS[KERNELS[0], name].text for name in ("header_page", "header_event")]
    with pytest.raises(GrammarError, match=said):
        geometry(real[0] if page is None else page, real[1] if event is None else event)


def test_a_return_probe() -> None:
    layout = Layout(0, "p", "cap_open_ret", "return", "f", (Arg("comm", "str"), Arg("ret", "int")))
    assert shape(layout, form("capture/cap_open_ret")).caller is None
    made = shape(replace(layout, caller=True), form("capture/cap_open_ret"))
    assert made.fields == (Field("dynamic", 32, 4, fault=True), Field("signed", 24, 8))
    assert made.caller == Field("symbol", 16, 8)
    assert (made.tid, made.size) == (Field("signed", 4, 4), 36)


def test_a_string_before_another_one() -> None:
    text = form("capture/cap_open_ret").replace(
        "\n\nprint", "\n\tfield:__data_loc char[] later;\toffset:36;\tsize:4;\tsigned:1;\n\nprint"
    )
    args = (Arg("comm", "str"), Arg("later", "str"), Arg("ret", "int"))
    made = shape(Layout(0, "p", "cap_open_ret", "return", "f", args), text)
    assert [field.next for field in made.fields] == [36, 0, 0]
    assert shape(Layout(0, "p", "cap_open_ret", "return", "f", args[:1]), text).size == 40


def test_a_tracepoint_under_names_of_ours() -> None:
    args = (
        Arg("who", "str", field="prev_comm"),
        Arg("state", "int", field="prev_state"),
        Arg("comm", "comm"),
    )
    made = shape(Layout(0, "p", "sched_switch", "tracepoint", "x", args), form("sched/sched_switch"))
    assert made.fields == (Field("text", 8, 16), Field("signed", 32, 8), Field("comm"))
    assert made.caller is None


def test_arrays_characters_and_addresses() -> None:
    text = form("capture/cap_open").replace(
        "field:s32 dfd;\toffset:16;\tsize:4;",
        "field:u16 a[3];\toffset:32;\tsize:6;\tsigned:0;\n"
        "\tfield:__data_loc char[][2] s;\toffset:40;\tsize:8;\tsigned:1;\n"
        "\tfield:u8 c;\toffset:48;\tsize:1;\tsigned:0;\n\tfield:s32 dfd;\toffset:16;\tsize:4;",
    )
    args = (
        Arg("a", "bare", type="x16[3]"),
        Arg("s", "texts", type="string[2]"),
        Arg("c", "char", type="char"),
        Arg("__probe_ip", "bare", type="symbol"),
    )
    made = shape(Layout(0, "p", "cap_open", "entry", "f", args), text)
    assert made.fields == (
        Field("array", 32, 6, "x16", 3),
        Field("texts", 40, 8, length=2, fault=True),
        Field("char", 48, 1),
        Field("symbol", 8, 8),
    )


def test_an_array_of_the_kernels_own_bytes() -> None:
    """``__u8`` begins like ``__data_loc``, but is an array within the record."""
    text = form("capture/cap_open").replace(
        "field:s32 dfd;\toffset:16;\tsize:4;\tsigned:1;",
        "field:__u8 dfd[16];\toffset:16;\tsize:16;\tsigned:0;",
    )
    made = shape(Layout(0, "p", "cap_open", "tracepoint", "x", (Arg("dfd", "bare", type="u8[16]"),)), text)
    assert made.fields == (Field("array", 16, 16, "u8", 16),)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("dfd", "other", "has no field 'dfd'"),
        ("s32 dfd;\toffset:16;\tsize:4", "s32 dfd;\toffset:16;\tsize:3", "3 bytes, so it is not a number"),
        ("int common_pid;\toffset:4", "int common_pid;\toffset:8", "common_pid at another place"),
        ("s32 dfd;", "s32 dfd[];", "an array that is not known"),
    ],
)
def test_what_this_kernel_does_not_have(old: str, new: str, said: str) -> None:
    layout = Layout(0, "p", "cap_open", "entry", "f", (Arg("dfd", "int"),))
    with pytest.raises(GrammarError, match=said):
        shape(layout, form("capture/cap_open").replace(old, new))


def test_stacks() -> None:
    text = "name: kernel_stack\nID: 4\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
    field = "\tfield:unsigned long caller[8];\toffset:16;\tsize:64;\tsigned:0;\n"
    process = "\tfield:unsigned int tgid;\toffset:8;\tsize:4;\tsigned:0;\n"
    assert stacks(text + field, None) == (StackLayout(4, 16), None)
    assert stacks(None, text + process + field) == (None, StackLayout(4, 16, 8))
    for formats, name in (((text, None), "caller"), ((None, text + field), "tgid")):
        with pytest.raises(GrammarError, match=f"no field '{name}'"):
            stacks(*formats)


def test_every_captured_format_can_be_read() -> None:
    """Each field of each format can be read; none is an array whose length only the record holds."""
    for file in FORMATS.values():
        check(file)


def check(file: Captured) -> None:
    parsed = parse_format(file.text)
    for field in parsed.fields.values():
        args = (Arg(field.name, "str" if field.text else "int"),)
        made = shape(Layout(0, "p", parsed.name, "tracepoint", "x", args), file.text)
        assert (made.fields[0].offset, made.fields[0].size) == (field.offset, field.size)
