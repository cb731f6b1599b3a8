"""Types of single values in a configuration, and the sentences that refuse invalid values."""

import os
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kprobe_exporter.config.model import CpuShare, Threshold, return_type
from kprobe_exporter.config.wording import nearest, quote
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.definition import parse_definition
from kprobe_exporter.grammar.fetch import LARGEST_ARRAY
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.grammar.lexis import SECONDS
from kprobe_exporter.grammar.target import parse_target

Decoders: TypeAlias = Mapping[str, Callable[[object], object]]
"""A decoder's name to a function that takes its options or None, and raises ValueError for bad ones."""

MAX_BUCKETS = 200

PROBE_NAME = r"^[a-z_][a-z0-9_]{0,39}$"
SPACE_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,39}$"
METRIC_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
FETCH_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,31}$"
SELECTOR = r"^[A-Za-z0-9._/*?\[\]!-]{1,320}$"
HEADER_NAME = r"^[A-Za-z0-9_.-]{1,128}$"

PATTERNS: Mapping[str, str] = {
    PROBE_NAME: "up to 40 of a-z, 0-9 and _, and no digit first",
    SPACE_NAME: "up to 40 of A-Z, a-z, 0-9 and _, and no digit first",
    METRIC_NAME: "up to 128 of A-Z, a-z, 0-9 and _, and no digit first",
    FETCH_NAME: "up to 32 of A-Z, a-z, 0-9 and _, and no digit first",
    SELECTOR: "up to 320 of A-Z, a-z, 0-9, ., _, -, / and, for several, *, ? and [a-z]",
    HEADER_NAME: "up to 128 of A-Z, a-z, 0-9, _, . and -",
}
"""A pattern to the names that it allows, in words."""

_BYTES: Mapping[str, int] = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"^[0-9]{1,12} ?(B|KiB|MiB|GiB)?$"

DURATION = r"^[0-9]{1,9} ?(ms|s|m|h|d)?$"
CPU_SHARE = r"^[0-9]{1,3}(\.[0-9]{1,4})? ?%$"

_T = TypeVar("_T")

_TAGS: Mapping[type, str] = {str: "<text>", dict: "<mapping>", list: "<list>", type(None): "<null>"}
"""The tags of a value's short and long forms. No configuration key equals a tag."""


def shapes(sentence: str) -> Discriminator:
    """Distinguish the forms in _TAGS; the sentence refuses any other value."""
    return Discriminator(
        lambda value: _TAGS.get(type(value)), custom_error_type="shape", custom_error_message=sentence
    )


def _valid(parse: Callable[[_T], object]) -> AfterValidator:
    """Return a validator that leaves the value unchanged, and keeps the column of a grammar error."""

    def check(value: _T) -> _T:
        try:
            parse(value)
        except GrammarError as error:
            details = {"sentence": error.message, "column": error.column}
            raise PydanticCustomError("grammar", "{sentence}", details) from None
        return value

    return AfterValidator(check)


def size(value: object) -> object:
    """Convert a string such as ``1MiB`` to bytes, or raise ValueError. Return other values unchanged."""
    if not isinstance(value, str):
        return value
    if not (found := re.fullmatch(_SIZE, value)):
        raise ValueError(f"{quote(value)} is not a size: write it as 512KiB, 1MiB or 2GiB")
    unit = found[1] or ""
    return int(value.removesuffix(unit)) * _BYTES[unit or "B"]


def duration(value: object) -> object:
    """Convert a string such as ``15m`` to seconds, or raise ValueError. Return other values unchanged."""
    if not isinstance(value, str):
        return value
    if not (found := re.fullmatch(DURATION, value)):
        raise ValueError(f"{quote(value)} is not a duration: write it as 500ms, 90s, 15m or 1h")
    unit = found[1] or ""
    return float(int(value.removesuffix(unit)) * SECONDS[unit or "s"])


def _cpu_share(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a share of the CPUs is written with %, as 5%, and not {quote(value)}")
    if not (re.fullmatch(CPU_SHARE, value) and 0 < _fraction(value) <= 1):
        raise ValueError(f"{quote(value)} is not a share above 0% up to 100%: write it as 1% or 0.5%")
    return value


def _fraction(share: str) -> float:
    return float(Decimal(share.rstrip("% ")) / 100)


def _line(value: str) -> str:
    """Replace a folded text's line breaks by spaces, because help is one line in the exposition."""
    return " ".join(value.split())


def _decoder(value: str | dict[str, Any], info: ValidationInfo) -> str | dict[str, Any]:
    """Check one step of decoding against the decoders that this version has."""
    decoders: Decoders = info.context["decoders"] if info.context else {}
    if isinstance(value, dict) and len(value) != 1:
        raise ValueError("a decoder with options is a mapping of one key: {NAME: OPTIONS}")
    name, options = (value, None) if isinstance(value, str) else next(iter(value.items()))
    if name not in decoders:
        raise ValueError(f"there is no decoder {quote(name)}{nearest(name, decoders)}")
    decoders[name](options)
    return value


# Otherwise pydantic searches the metadata of every installed package for its plugins.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


class Strict(BaseModel):
    """The base of the models of all mappings in the configuration."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def no_items() -> list[Any]:
    """Return the default of a list. For the class ``list``, pydantic would parse its text signature."""
    return []


Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_BUCKETS)]
Size: TypeAlias = Annotated[
    int,
    BeforeValidator(size),
    Field(ge=4096, le=1 << 40),
    WithJsonSchema({"type": ["integer", "string"], "pattern": _SIZE, "examples": ["1MiB"]}),
]
Duration: TypeAlias = Annotated[
    float,
    BeforeValidator(duration),
    Field(ge=0, le=1e9),
    WithJsonSchema({"type": ["number", "string"], "pattern": DURATION, "examples": ["15m"]}),
]
Help: TypeAlias = Annotated[str, Field(max_length=1000), AfterValidator(_line)]
Filter: TypeAlias = Annotated[str, _valid(partial(parse_filter, fractions=True))]
Where: TypeAlias = Annotated[
    str, _valid(parse_formula), Field(examples=["return > 0", "bytes / 512 > sectors"])
]
Let: TypeAlias = Annotated[
    dict[Annotated[str, Field(pattern=FETCH_NAME)], Annotated[str, _valid(parse_formula)]],
    Field(max_length=64, examples=[{"lag": "finished - started"}]),
]
Definition: TypeAlias = Annotated[
    str, _valid(parse_definition), Field(examples=["r:myopen do_sys_openat2 rval=$retval"])
]
To: TypeAlias = Annotated[
    str,
    _valid(parse_target),
    Field(examples=["kprobe:tcp_retransmit_skb", "tracepoint:sched:sched_process_exec"]),
]
Returns: TypeAlias = Annotated[str, _valid(return_type), Field(examples=["int", "long"])]


class ProgramText(Strict):
    """Text in a program's memory, behind an argument of a system call: one string, or an array of them."""

    string: str | None = None
    """The argument that points to a string."""
    strings: str | None = None
    """The argument that points to an array of strings, as `argv` of execve; blanks join them to one text."""
    max: Annotated[int, Field(ge=1, le=LARGEST_ARRAY - 1)] = 8
    """How many of `strings` are read at most; `...` stands for further ones."""

    @model_validator(mode="after")
    def _one(self) -> "ProgramText":
        if (self.string is None) == (self.strings is None):
            raise ValueError("write {string: ARGUMENT}, or {strings: ARGUMENT, max: 8}")
        return self


Fetched: TypeAlias = str | list[str] | ProgramText | None
_Fetched: TypeAlias = Annotated[
    Annotated[None, Tag("<null>")]
    | Annotated[str, Tag("<text>")]
    | Annotated[list[str], Field(min_length=1, max_length=8), Tag("<list>")]
    | Annotated[ProgramText, Tag("<mapping>")],
    shapes(
        "what is fetched is a text as sk->sk_protocol or $arg1:u32, a list of these, {string: ARGUMENT},"
        " or null"
    ),
]
Fetch: TypeAlias = dict[Annotated[str, Field(pattern=FETCH_NAME)], _Fetched]
Name: TypeAlias = Annotated[str, Field(pattern=METRIC_NAME)]
Selector: TypeAlias = Annotated[str, Field(pattern=SELECTOR)]


CpuTime: TypeAlias = Annotated[
    str,
    BeforeValidator(_cpu_share),
    WithJsonSchema({"type": "string", "pattern": CPU_SHARE, "examples": ["1%"]}),
]


class LimitModel(Strict):
    """The most that is tolerated for longer than some seconds: one of the keys."""

    cpu: CpuTime | None = None
    """Share of the time of all CPUs, as `1%`: firings times an estimate of what each costs."""
    hits_per_second: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Firings a second, those that a filter turns away included."""

    @model_validator(mode="after")
    def _one(self) -> "LimitModel":
        if (self.cpu is None) == (self.hits_per_second is None):
            raise ValueError("a limit has either `cpu` or `hits_per_second`")
        return self


_None: TypeAlias = Annotated[Literal["none"], Tag("<text>")]
Limit: TypeAlias = Annotated[
    _None | Annotated[LimitModel, Tag("<mapping>")],
    shapes("a limit is {cpu: SHARE}, {hits_per_second: NUMBER}, or none"),
]


def threshold(limit: Limit) -> Threshold:
    """Return a limit as a value, None for no limit."""
    if isinstance(limit, str):
        return None
    if limit.cpu is not None:
        return CpuShare(_fraction(limit.cpu))
    return float(limit.hits_per_second or 0)


class Linear(Strict):
    """Bounds at equal distances."""

    start: Finite
    """The first bound."""
    width: Annotated[Finite, Field(gt=0)]
    """From one bound to the next."""
    count: Count
    """How many bounds."""


class Exp2(Strict):
    """Bounds that double."""

    min: Annotated[Finite, Field(gt=0)]
    """The first bound."""
    count: Count
    """How many bounds."""


class BucketRule(Strict):
    """Bounds by a rule: `linear` or `exp2`."""

    linear: Linear | None = None
    exp2: Exp2 | None = None

    @model_validator(mode="after")
    def _one(self) -> "BucketRule":
        if (self.linear is None) == (self.exp2 is None):
            raise ValueError("write linear: {start, width, count} or exp2: {min, count}")
        return self


def bounds(buckets: list[float] | BucketRule | Literal["none"]) -> tuple[float, ...]:
    """Return the upper bounds that ``buckets`` describes. Raises ValueError if they do not rise."""
    if isinstance(buckets, str):
        return ()
    if isinstance(buckets, list):
        found = tuple(map(float, buckets))
    elif rule := buckets.linear:
        # As decimals: 0.7 + 0.1 is 0.8, and the sum of the floats a bit less.
        start, width = Decimal(repr(rule.start)), Decimal(repr(rule.width))
        found = tuple(float(start + width * i) for i in range(rule.count))
    else:
        assert buckets.exp2
        found = tuple(buckets.exp2.min * 2.0**i for i in range(buckets.exp2.count))
    if not found:
        raise ValueError("buckets are empty: write at least one bound")
    if found[-1] in (float("inf"), float("-inf")):
        raise ValueError("these buckets grow beyond the largest number: take fewer")
    for before, after in pairwise(found):
        if not before < after:
            raise ValueError(f"buckets must rise: {after:g} comes after {before:g}")
    return found


_Bounds: TypeAlias = Annotated[list[Finite], Field(max_length=MAX_BUCKETS), Tag("<list>")]
_Rule: TypeAlias = Annotated[BucketRule, Tag("<mapping>")]

Buckets: TypeAlias = Annotated[
    _Bounds | _Rule,
    shapes("buckets are a list of numbers, or a rule: {exp2: {min: 1e-6, count: 20}}"),
    _valid(bounds),
]
BuiltInBuckets: TypeAlias = Annotated[
    _None | _Bounds | _Rule,
    shapes("buckets are a list of numbers, a rule: {exp2: {min: 1e-6, count: 20}}, or none"),
    _valid(bounds),
]

_Named: TypeAlias = Annotated[str, AfterValidator(_decoder), Tag("<text>")]
_WithOptions: TypeAlias = Annotated[dict[str, Any], AfterValidator(_decoder), Tag("<mapping>")]
_Step: TypeAlias = Annotated[_Named | _WithOptions, shapes("a decoder is its name, or {NAME: OPTIONS}")]
Decoding: TypeAlias = Annotated[
    _Named | _WithOptions | Annotated[list[_Step], Field(min_length=1), Tag("<list>")],
    shapes("decode is a decoder's name, {NAME: OPTIONS}, or a list of these"),
]


MAX_LABELS = 32


class LabelModel(Strict):
    """A label's field, and how its value becomes text."""

    field: str
    """The field that the label shows: `comm`, `cpu`, `return`, …, a name of `fetch`, or a fact of the
    thread's process: `exe`, `ppid`, `parent_comm`, `uid`, `exit_code` or `exit_signal`."""
    decode: Annotated[Decoding | None, Field(examples=["errno", {"map": {0: "ok", 1: "failed"}}])] = None
    """A decoder's name, `{NAME: OPTIONS}`, or a list of these to apply in turn."""


_Label: TypeAlias = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[LabelModel, Tag("<mapping>")],
    shapes("a label is the name of a field, or {field: NAME, decode: DECODER}; a list of fields is [comm]"),
]
Labels: TypeAlias = Annotated[
    Annotated[list[Name], Field(max_length=MAX_LABELS), Tag("<list>")]
    | Annotated[dict[Name, _Label], Field(max_length=MAX_LABELS), Tag("<mapping>")],
    shapes("labels are a list of fields, or a mapping of NAME to FIELD"),
]
Attributes: TypeAlias = Annotated[
    Annotated[list[str], Field(max_length=64), Tag("<list>")]
    | Annotated[dict[Name, _Label], Field(max_length=MAX_LABELS), Tag("<mapping>")],
    shapes("attributes are a list of names of `fetch`, or a mapping of NAME to FIELD"),
]
