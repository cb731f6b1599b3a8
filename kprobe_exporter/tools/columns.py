"""The columns of a tool: how a value is written, in lines of text, JSON and CSV. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kprobe_exporter.errors import name_text, one_line
from kprobe_exporter.model.specs import OF_THREAD
from kprobe_exporter.tools.tool_model import ColumnModel, Unit, column_key

Cell: TypeAlias = int | float | str | bytes | None
"""A value of a column: a number before its unit, a text; None where there is none."""

UNITS: Mapping[Unit, tuple[float, int]] = {
    "s": (1e-9, 3),
    "ms": (1e-6, 3),
    "us": (1e-3, 0),
    "ns": (1, 0),
    "KB": (1 / 1024, 0),
    "MB": (1 / (1 << 20), 1),
}
"""The factor of a number of nanoseconds or bytes, and the digits behind the decimal point."""

WIDTHS: Mapping[str, int] = {
    **dict.fromkeys(("comm", "common_comm", "parent_comm"), 16),
    **dict.fromkeys(("pid", "tid", "ppid", "common_pid", "common_tgid"), 7),
    "uid": 6,
    "cpu": 3,
}
"""Characters of columns that show these fields, where the tool does not say."""

NARROWEST, MOST_WIDE = 8, 60
"""Characters of a column by default, and of one in a table that is widened for its texts."""

NOTHING = "-"
"""The text of a column without a value."""


class Column(NamedTuple):
    """A column: its title, its name in JSON, and the field or the expression that it shows.

    A number is multiplied by ``factor``, None for none, and has ``digits`` behind the decimal point.
    """

    title: str
    key: str
    source: str
    width: int
    decode: object = None
    right: bool = False
    factor: float | None = None
    digits: int = 0
    hexadecimal: bool = False
    per_second: bool = False

    @property
    def of_thread(self) -> str | None:
        """The decoder of OF_THREAD by which it shows the thread of a row; None for another column."""
        return self.decode if isinstance(self.decode, str) and self.decode in OF_THREAD else None

    def number(self, value: float) -> float | str:
        """Return a number in the column's unit, for JSON."""
        if self.hexadecimal:
            return f"{int(value) % (1 << 64):#x}"
        return value if self.factor is None else round(value * self.factor, max(self.digits, 0))

    def plain(self, value: Cell) -> float | str | None:
        """Return a value for JSON: a number in the column's unit, an escaped text, or None."""
        if value is None:
            return None
        if isinstance(value, bytes):
            return name_text(value)
        return value if isinstance(value, str) else self.number(value)

    def text(self, value: Cell) -> str:
        """Return a value as it is shown, on one line."""
        shown = self.plain(value)
        if shown is None or shown == "":
            return NOTHING
        if isinstance(shown, str):
            return one_line(shown)
        return f"{shown:.{self.digits}f}"

    def padded(self, text: str) -> str:
        return f"{text:>{self.width}}" if self.right else f"{text:<{self.width}}"


def column_of(title: str, written: str | ColumnModel) -> Column:
    """Return a column of a tool's file."""
    model = ColumnModel(field=written) if isinstance(written, str) else written
    source = (model.field or model.value or "").strip()
    factor, digits = (model.scale, 2) if model.unit is None or model.unit == "hex" else UNITS[model.unit]
    right = model.unit not in (None, "hex") or model.value is not None
    width = model.width or max(len(title), WIDTHS.get(source, NARROWEST))
    return Column(
        title,
        column_key(title),
        source,
        width,
        model.decode,
        right if model.align is None else model.align == "right",
        factor,
        (digits if factor is not None or model.per_second else 0) if model.digits is None else model.digits,
        model.unit == "hex",
        model.per_second,
    )


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[Column]:
    """Return the columns as wide as their longest texts, MOST_WIDE at most."""
    longest = [max((len(row[place]) for row in rows), default=0) for place in range(len(columns))]
    return [
        column._replace(width=max(column.width, min(wide, MOST_WIDE)))
        for column, wide in zip(columns, longest, strict=True)
    ]


def line(columns: Sequence[Column], texts: Sequence[str]) -> str:
    """Return the texts of one row, in columns."""
    return " ".join(column.padded(text) for column, text in zip(columns, texts, strict=True)).rstrip()


def header(columns: Sequence[Column]) -> str:
    return line(columns, [column.title for column in columns])
