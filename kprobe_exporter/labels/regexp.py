"""``regexp``: the text that group 1 of a pattern matches: ``decode: {regexp: '^(\\w+)'}``."""

from kprobe_exporter.errors import name_text
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value

LONGEST_PATTERN = 200
LONGEST = 4096  # bytes of a text that are searched, at most: PATH_MAX of the kernel
LARGEST = 1500  # instructions of a compiled pattern; a repeat that is counted, {n,m}, is compiled m times
MEMORY = 256 << 10  # bytes that RE2 may use for one pattern; with less, it computes more of its states again

NO_PATTERN = "this is not a regular expression of RE2, which looks neither ahead nor back"
TOO_LARGE = "this pattern is too large: {n,m} is compiled m times, so write * or +, and [a-z] instead of \\pL"


def decoder(options: object) -> Decoder:
    """Make a decoder from a pattern with at least one group. Raises ValueError for anything else.

    A process can choose its name, so RE2 searches: it does not backtrack, and its time is at most LARGEST
    steps a byte. A text that is longer than LONGEST is never cut, since its end could be what the pattern
    asks for: the decoder returns None. It searches the text that a label without a decoder would have.
    """
    # Only a configuration with this decoder needs the library.
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415

    if not isinstance(options, str):
        raise ValueError("the decoder regexp wants a pattern with a group, as in {regexp: '^([a-z]+)'}")
    if len(options) > LONGEST_PATTERN:
        raise ValueError(f"a pattern has at most {LONGEST_PATTERN} characters, this one {len(options)}")
    settings = re2.Options()
    settings.log_errors = False  # it would write to stderr
    settings.max_mem = MEMORY
    try:
        pattern = re2.compile(options.encode(errors="surrogatepass"), settings)
    except re2.error as error:
        said = error.args[0].decode(errors="backslashreplace")
        if said.startswith("pattern too large"):
            raise ValueError(TOO_LARGE) from None
        raise ValueError(f"{NO_PATTERN}: {repr(said)[1:-1]}") from None
    if not pattern.groups:
        raise ValueError("the pattern has no group: put what is wanted in ( )")
    if pattern.programsize > LARGEST:
        raise ValueError(TOO_LARGE)

    def decode(value: Value) -> str | None:
        if value is None:
            return None
        text = name_text(value) if isinstance(value, bytes) else str(value)
        encoded = text.encode()  # RE2 searches in UTF-8
        found = pattern.search(encoded) if len(encoded) <= LONGEST else None
        group: bytes | None = found[1] if found else None
        return None if group is None else group.decode(errors="backslashreplace")  # \C splits a character

    return decode
