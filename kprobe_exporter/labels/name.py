"""``name``: what the kernel calls a number: ``NO_SOCKET``, or ``S|D`` for flags; others stay numbers."""

import re
from collections.abc import Callable, Mapping

from kprobe_exporter.labels._text import number, printable
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value, enumerator

ENUM = re.compile(r"(?:enum )?([A-Za-z_][A-Za-z0-9_]{0,127})")

Enum = Callable[[str], Mapping[int, str]]
"""Returns the names of an enum's values; of an enum that this kernel's types do not have, none."""


def decoder_with(enum: Enum) -> Callable[[object], Decoder]:
    """Return a factory of decoders that take the names of an enum from ``enum``.

    If no enum is given, the plan of a probe knows the words for a field, which depend on where it is
    attached. The aggregator puts them in place of the numbers before this decoder gets them.
    """

    def decoder(options: object) -> Decoder:
        """Make a decoder; ``{name: {enum: skb_drop_reason}}`` names the enum. Raises ValueError."""
        name = _enum(options)
        names = enum(name) if name else {}

        def decode(value: Value) -> str | None:
            found = number(value)
            if found is None:
                return printable(value) if isinstance(value, bytes) else None
            return enumerator(names, found) or str(found)

        return decode

    return decoder


def _enum(options: object) -> str:
    if options is None:
        return ""
    if isinstance(options, Mapping) and options.keys() == {"enum"}:
        found = ENUM.fullmatch(name) if isinstance(name := options["enum"], str) else None
        if found:
            return found[1]
    raise ValueError(
        "the decoder name takes no option but an enum: write 'decode: name', or"
        " {name: {enum: skb_drop_reason}}"
    )


decoder = decoder_with(lambda name: {})
"""Knows no enum. It suffices to check a configuration."""
