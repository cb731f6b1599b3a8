"""``ksym``: a kernel address as its symbol: ``vfs_read``, or ``vfs_read+0x10`` with the offset."""

import re
from collections.abc import Callable, Mapping

from kprobe_exporter.labels._text import unsigned
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value

SYMBOL = re.compile(
    rb"([A-Za-z_.$][\w.$]{0,510})(\+0x[0-9a-f]{1,16})?(?:/0x[0-9a-f]{1,16})?(?: \[[\w ]{1,128}\])?"
)
"""A symbol as the kernel prints it (kernel/kallsyms.c: sprint_symbol), with module and build id."""


def decoder_with(resolve: Callable[[int], bytes | None]) -> Callable[[object], Decoder]:
    """Return a factory of decoders that pass addresses to ``resolve``. Text with a symbol needs no call.

    It returns an address as the kernel prints it; hexadecimal or None where there is no symbol.
    """

    def decoder(options: object) -> Decoder:
        """Make a decoder to names; ``{ksym: {offset: true}}`` adds the offset, so a series per address."""
        offset = _offset(options)

        def decode(value: Value) -> str | None:
            address = unsigned(value, 64)
            text = value if address is None else resolve(address)
            found = SYMBOL.fullmatch(text) if isinstance(text, bytes) else None
            if found is None:
                return None
            return (found[1] + (found[2] or b"") if offset else found[1]).decode()

        return decode

    return decoder


def _offset(options: object) -> bool:
    if options is None:
        return False
    if isinstance(options, Mapping) and options.keys() == {"offset"} and isinstance(options["offset"], bool):
        return bool(options["offset"])
    raise ValueError(
        "the decoder ksym takes no option but offset: write 'decode: ksym', or {ksym: {offset: true}}"
    )


decoder = decoder_with(lambda address: None)
"""Resolves no address. It suffices to check a configuration, and for symbols that the kernel printed."""
