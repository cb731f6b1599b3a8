"""The label sets of one metric, each with its cell of numbers, capped."""

from collections.abc import Callable
from typing import Generic, TypeVar

from kprobe_exporter.model import Decoder, LabelSpec, LabelValues, Value

OVERFLOW = "__overflow__"
"""The value of every label in the set that takes what is over the cap."""

UNKNOWN = "unknown"
"""A label whose value could not be read or decoded."""

LABEL_BYTES = 128

Cell = TypeVar("Cell")
RawKey = tuple[Value, ...]


class Series(Generic[Cell]):
    """The cells of one metric by label set, at most ``cap`` of them and one for the overflow.

    Raw field values lead to their cell through a cache, so that an event of a known label set costs
    one lookup and nothing is decoded twice; the cache is bounded too, since many raw values may
    decode to one label set. Not thread-safe: the aggregator's lock guards it.
    """

    def __init__(
        self,
        labels: tuple[LabelSpec, ...],
        make: Callable[[], Cell],
        cap: int,
        failed: Callable[[str], None],
    ) -> None:
        self.labels = labels
        self.cells: dict[LabelValues, Cell] = {}
        self.overflowed = 0
        self._make = make
        self._cap = cap
        self._failed = failed
        self._cache: dict[RawKey, Cell] = {}
        self._overflow = (OVERFLOW,) * len(labels)
        if not labels:
            self.cells[()] = self._cache[()] = make()

    def cell(self, raw: RawKey) -> Cell:
        """The cell of these raw values, one for each label."""
        found = self._cache.get(raw)
        return self._look_up(raw) if found is None else found

    def _look_up(self, raw: RawKey) -> Cell:
        failures = False
        texts = []
        for label, value in zip(self.labels, raw, strict=True):
            text = self._decode(label, value)
            failures = failures or text is None
            texts.append(UNKNOWN if text is None else text)
        key = tuple(texts)
        found = self.cells.get(key)
        if found is None:
            if len(self.cells) - (self._overflow in self.cells) >= self._cap:
                self.overflowed += 1
                return self.cells.setdefault(self._overflow, self._make())
            found = self.cells[key] = self._make()
        if not failures:  # a failure is counted at every event, so it may not be cached
            if len(self._cache) >= 4 * self._cap:
                self._cache.clear()
            self._cache[raw] = found
        return found

    def _decode(self, label: LabelSpec, value: Value) -> str | None:
        if not label.decoders:
            if value is None:
                self._failed("none")
                return None
            return plain(value)
        text: str | None = None
        for name, decode in label.decoders:
            text = _attempt(decode, value)
            if text is None:
                self._failed(name)
                return None
            value = text.encode()
        return plain(value)


def _attempt(decode: Decoder, value: Value) -> str | None:
    return None if value is None else decode(value)


def plain(value: Value) -> str:
    """A field's value as label text: bytes that are no UTF-8 become ``\\xNN``, cut at 128 bytes."""
    if isinstance(value, bytes):
        text = value.decode(errors="backslashreplace")
        if len(text) * 4 > LABEL_BYTES:
            text = text.encode()[:LABEL_BYTES].decode(errors="ignore")
        return text
    return str(value)
