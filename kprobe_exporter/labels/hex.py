"""``hex``: a number as 0x…, the form of addresses and flags; a negative one as its 64 bits."""

from kprobe_exporter.model.values import Decoder, Value


def decoder(options: object) -> Decoder:
    """Make the decoder, which takes no options."""
    if options is not None:
        raise ValueError("the decoder hex takes no options: write 'decode: hex'")
    return decode


def decode(value: Value) -> str | None:
    return hex(value % (1 << 64)) if isinstance(value, int) else None
