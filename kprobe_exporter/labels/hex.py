"""``hex``: a number as 0x…, as addresses and flags are written; a negative one as its 64 bits."""

from kprobe_exporter.model.values import Decoder, Value


def decoder(options: object) -> Decoder:
    """Takes no options."""
    if options is not None:
        raise ValueError("the decoder hex takes no options: write 'decode: hex'")
    return decode


def decode(value: Value) -> str | None:
    return hex(value % (1 << 64)) if isinstance(value, int) else None
