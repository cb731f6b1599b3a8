"""``map``: fixed names for single values: ``decode: {map: {0: ok, 1: failed}}``."""

from collections.abc import Mapping

from kprobe_exporter.labels._text import number
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value


def decoder(options: object) -> Decoder:
    """Make a decoder from a mapping of numbers or strings to names. Raises ValueError for anything else.

    A number as key also matches its decimal or hexadecimal text, which decoders before this one give.
    """
    if not isinstance(options, Mapping) or not options:
        raise ValueError("the decoder map wants a mapping, as in {map: {0: ok, 1: failed}}")
    names: dict[Value, str] = {}
    for key, name in options.items():
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise ValueError(f"the decoder map takes numbers and strings as keys, not {key!r}")
        if isinstance(name, bool) or not isinstance(name, int | str):
            raise ValueError(f"the decoder map wants a name for {key!r}, not {name!r}")
        names[key if isinstance(key, int) else key.encode()] = str(name)

    def decode(value: Value) -> str | None:
        if value in names:
            return names[value]
        found = number(value)
        return None if found is None else names.get(found)

    return decode
