"""The structure of a trace.dat, read back by the rules of trace-cmd.dat.v6(5)."""

import io
import struct
from typing import BinaryIO

from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.export.trace_dat import SYSTEM_NAME, TRACE_CLOCK, Recording, write

CONTENT = st.binary(max_size=40)
RECORDINGS = st.builds(
    Recording,
    st.sampled_from([4096, 16384]),
    CONTENT,
    CONTENT,
    st.lists(CONTENT, max_size=3),
    st.dictionaries(st.from_regex("[a-z]{1,8}", fullmatch=True), st.lists(CONTENT, max_size=3), max_size=3),
    CONTENT,
    CONTENT,
    CONTENT,
    st.lists(st.tuples(st.sampled_from([TRACE_CLOCK, SYSTEM_NAME]), CONTENT), max_size=3),
)


class Read:
    """Reads the parts of a file one after the other."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def exactly(self, text: bytes) -> None:
        assert self.file.read(len(text)) == text

    def number(self, form: str) -> int:
        (value,) = struct.unpack("=" + form, self.file.read(struct.calcsize("=" + form)))
        return int(value)

    def sized(self, form: str = "Q") -> bytes:
        return self.file.read(self.number(form))

    def text(self) -> str:
        found = b""
        while (byte := self.file.read(1)) != b"\0":
            found += byte
        return found.decode()


@given(RECORDINGS, st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_what_is_written_is_read_back(recording: Recording, pages: list[int]) -> None:
    contents = [bytes([65 + cpu]) * (number * recording.page_bytes) for cpu, number in enumerate(pages)]
    file = io.BytesIO()
    last = len(contents) - 1
    written = {cpu: io.BytesIO(content) for cpu, content in enumerate(contents) if content or cpu == last}
    write(file, recording, written)
    file.seek(0)
    read = Read(file)
    read.exactly(b"\x17\x08\x44tracing6\0\0\x08")
    assert read.number("I") == recording.page_bytes
    read.exactly(b"header_page\0")
    assert read.sized() == recording.header_page
    read.exactly(b"header_event\0")
    assert read.sized() == recording.header_event
    assert [read.sized() for _ in range(read.number("I"))] == recording.ftrace
    events = {}
    for _ in range(read.number("I")):
        system = read.text()
        events[system] = [read.sized() for _ in range(read.number("I"))]
    assert events == recording.events
    assert read.sized("I") == recording.symbols
    assert read.sized("I") == recording.printk_formats
    assert read.sized() == recording.names
    assert read.number("I") == len(pages)
    read.exactly(b"options  \0")
    options = []
    while kind := read.number("H"):
        options.append((kind, read.sized("I")))
    assert options == recording.options
    read.exactly(b"flyrecord\0")
    places = [(read.number("Q"), read.number("Q")) for _ in pages]
    for (at, size), content in zip(places, contents, strict=True):
        assert at % recording.page_bytes == 0
        file.seek(at)
        assert file.read(size) == content
