"""Parses YAML text to plain values and their positions: strict, bounded, with YAML 1.2's scalars.

This module reads the parser's events, because a loader builds values before it checks them. Here,
excessive depth, aliases and tags are refused as they come, and no input costs more than its size.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import yaml

from kprobe_exporter.config.wording import Path, path_text
from kprobe_exporter.errors import ConfigError, Problem

MAX_DEPTH = 20

# The parser's events: keys, values, and the ends of lists and mappings. 3,000 small probes have as many. An
# event takes 50 µs to parse, and as long to be checked.
MAX_EVENTS = 50_000

# These follow the core schema of YAML 1.2, chapter 10.3: `1e-6` is a number, `on` and `yes` are text.
_NULL = frozenset(["", "~", "null", "Null", "NULL"])
_BOOL = {w: w.lower() == "true" for w in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INT = re.compile(r"[-+]?[0-9]{1,400}")
_BASED = re.compile(r"0(o[0-7]{1,400}|x[0-9a-fA-F]{1,400})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)")
_NAN = frozenset([".nan", ".NaN", ".NAN"])

# Of the control and line-separator characters, text needs only the line feed and the tab. A surrogate
# (written \ud800) cannot be printed or sent.
_CONTROL = re.compile("[\0-\b\v-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# These hints explain messages of the YAML parser to users who do not know them.
_HINTS = {
    r"'\t' that cannot start": "indent with spaces, YAML allows no tabs there",
    "cannot start any token": "put the value in quotes",
    "mapping values are not allowed": "put a value that holds a colon in quotes, or look at the indentation",
    "could not find expected ':'": "a key needs a colon, and the file may be cut off here",
    "'<stream end>'": "the file seems to be cut off",
    "unexpected end of stream": "the file seems to be cut off",
}


class Position(NamedTuple):
    """A position in the text, counted from 0. ``text`` is the column of a scalar's first character.

    It is None for lists and mappings, and for scalars whose escapes or line breaks shift the columns.
    """

    line: int
    column: int
    text: int | None = None


class YamlSource:
    """One parsed file: ``data`` holds the values, and the methods give each value's position in the text.

    ``readable`` are the problems that leave the rest readable: keys that occur twice, and a syntax error,
    before which the probes are read.
    """

    def __init__(self, file: str, content: bytes) -> None:
        """Parse the content. Raises ConfigError unless it is a single, plain YAML document."""
        self.file = file
        self.readable: list[Problem] = []
        self._refused: list[Problem] = []
        self._values: dict[Path, Position] = {}
        self._keys: dict[Path, Position] = {}
        self.data = self._document(self._decode(content))
        if self._refused:
            raise ConfigError(self._refused + self.readable)

    def resolve(self, loc: Path) -> Path:
        """Return the steps of a validator's location that are in the text, without its unions' branches."""
        path: Path = ()
        for step in loc:
            if (*path, step) in self._values:
                path = (*path, step)
        return path

    def problem(self, path: Path, message: str, *, column: int = 0, at_key: bool = False) -> Problem:
        """Return a problem at a path, or at its nearest ancestor that is in the text.

        It points at the value, ``column`` characters into it if they can be counted, or at its key.
        """
        near = path
        while near and near not in self._values:
            near = near[:-1]
        place = self._values.get(near, Position(0, 0))
        if at_key:
            place = self._keys.get(near, place)
        elif column and place.text is not None:
            place = Position(place.line, place.text + column)
        return self._problem(place, path, message)

    def place_of(self, path: Path) -> tuple[str, int, int] | None:
        """Return the file, line and column, counted from 1, of the first character of a scalar; None if it
        is not in the text, or the text in no file."""
        if (place := self._values.get(path)) is None or not self.file:
            return None
        return self.file, place.line + 1, (place.column if place.text is None else place.text) + 1

    def _problem(self, place: Position, path: Path, message: str) -> Problem:
        return Problem(self.file, place.line + 1, place.column + 1, path_text(path), message)

    def _fatal(self, place: Position, message: str, path: Path = ()) -> ConfigError:
        return ConfigError([*self._refused, *self.readable, self._problem(place, path, message)])

    def _decode(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            end = _end_of(content[: error.start].decode())
            raise self._fatal(end, f"this is not UTF-8: byte 0x{content[error.start]:02x}") from None

    def _document(self, text: str) -> Any:
        # The messages of the parser in Python, unlike libyaml's, do not depend on how PyYAML was built.
        events = self._bounded(yaml.parse(text, Loader=yaml.SafeLoader))
        try:
            next(events)  # the stream's start
            if isinstance(next(events), yaml.StreamEndEvent):
                raise self._fatal(Position(0, 0), "the file is empty: it needs `probes:`")
            data = self._value(next(events), events, ())
            next(events)  # the document's end
            if not isinstance(event := next(events), yaml.StreamEndEvent):
                sentence = "a second document starts here: one file holds one, split it into two files"
                raise self._fatal(_place(event.start_mark), sentence)
        except yaml.reader.ReaderError as error:
            what = f"the control character {error.character:#04x} has no place in a text file"
            end = _end_of(text[: error.position])
            raise self._fatal(end, f"{what}: is it binary, or damaged?") from None
        except yaml.MarkedYAMLError as error:
            data = self._before(text, self._fatal(_place(error.problem_mark), _syntax(error)))
        except (ValueError, OverflowError):
            # chr() or int() refused an escape or a version, an error that PyYAML does not handle.
            sentence = r"not valid YAML: a \U escape or a directive holds too large a number"
            raise self._fatal(Position(0, 0), sentence) from None
        return data

    def _bounded(self, events: Iterator[yaml.Event]) -> Iterator[yaml.Event]:
        """Pass the events on, as many as a file may have."""
        for number, event in enumerate(events):
            if number >= MAX_EVENTS:
                sentence = f"more than {MAX_EVENTS:,} keys and values: split the file into several"
                raise self._fatal(_place(event.start_mark), sentence)
            yield event

    def _before(self, text: str, failed: ConfigError) -> Any:
        """Return the values before the probe in which the parser ``failed``. Raises that without any."""
        probes = [place.line for path, place in self._values.items() if path[:-1] == ("probes",)]
        if len(probes) < 2:
            raise failed
        try:
            before = YamlSource(self.file, "\n".join(text.split("\n")[: probes[-1]]).encode())
        except ConfigError:
            raise failed from None
        self._values, self._keys = before._values, before._keys
        self.readable = [*failed.problems, *before.readable]
        return before.data

    def _value(self, event: yaml.Event, events: Iterator[yaml.Event], path: Path) -> Any:
        """Return the value that starts with this event. MAX_DEPTH bounds the recursion."""
        self._check_node(event, path)
        start = _place(event.start_mark)
        if isinstance(event, yaml.ScalarEvent):
            text, quotes = event.value, 0 if event.style is None else 1
            end = Position(start.line, start.column + len(text) + 2 * quotes)
            countable = _place(event.end_mark) == end
            self._values[path] = start._replace(text=start.column + quotes if countable else None)
            return self._scalar(event, path)
        if len(path) >= MAX_DEPTH:
            raise self._fatal(start, f"nested deeper than {MAX_DEPTH} levels", path[:3])
        self._values[path] = self._keys.get(path, start)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, path)
        items: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self._value(event, events, (*path, len(items))))
        return items

    def _check_node(self, event: yaml.Event, path: Path) -> None:
        start = _place(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            raise self._fatal(start, "aliases (*) are not read: write the value out", path)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.anchor is not None:
            self._refuse(start, "anchors (&) are not read: write the value out", path)
        if event.tag is not None:
            self._refuse(start, "tags (!) are not read: leave it out, quotes make text", path)

    def _scalar(self, event: yaml.ScalarEvent, path: Path) -> Any:
        if found := _CONTROL.search(event.value):
            sentence = f"the control character {found.group()!a} has no place here"
            self._refuse(_place(event.start_mark), sentence, path)
        return _resolve(event.value) if event.style is None else event.value

    def _mapping(self, events: Iterator[yaml.Event], path: Path) -> dict[Any, Any]:
        pairs: dict[Any, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            place = _place(event.start_mark)
            self._check_node(event, path)
            if not isinstance(event, yaml.ScalarEvent):
                raise self._fatal(place, "a key must be a plain word or number", path)
            key = self._scalar(event, path)
            here = (*path, key)
            if key is None:
                self._refuse(place, "a key is missing before the colon", path)
            if key in pairs:
                sentence = f"this key is there already, in line {self._keys[here].line + 1}: keep one"
                self.readable.append(self._problem(place, here, sentence))
                # The first value counts, and the positions in the second must not replace its own.
                self._skip(next(events), events)
                continue
            self._keys[here] = place
            pairs[key] = self._value(next(events), events, here)
        return pairs

    def _skip(self, event: yaml.Event, events: Iterator[yaml.Event]) -> None:
        depth = 0
        while True:
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth == 0:
                return
            event = next(events)

    def _refuse(self, place: Position, message: str, path: Path) -> None:
        self._refused.append(self._problem(place, path, message))


@dataclass(frozen=True, slots=True)
class Report:
    """Collects the problems and warnings of one part of a source, by their paths within the part."""

    source: YamlSource
    place: Path
    problems: list[Problem]
    warnings: list[Problem]

    def __call__(self, path: Path, message: str, *, column: int = 0, at_key: bool = False) -> None:
        """Record a problem, as ``YamlSource.problem`` makes it."""
        self.problems.append(self.source.problem((*self.place, *path), message, column=column, at_key=at_key))

    def warn(self, path: Path, message: str, *, column: int = 0) -> None:
        """Record a warning, which does not make the configuration invalid."""
        replace(self, problems=self.warnings)(path, f"warning: {message}", column=column)

    def where(self, path: Path) -> str:
        """Return ``FILE:LINE`` of a path, to refer to it in a sentence."""
        return f"{self.source.file}:{self.source.problem((*self.place, *path), '').line}"

    def place_of(self, path: Path) -> tuple[str, int, int] | None:
        """Return the file, line and column, counted from 1, of a text; None if it is not in the file."""
        return self.source.place_of((*self.place, *path))

    def below(self, path: Path) -> "Report":
        """Return the collector for the part at ``path``."""
        return replace(self, place=(*self.place, *path))


def _resolve(text: str) -> object:
    """Return the value of a plain scalar."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text.replace(".inf", "inf").replace(".Inf", "inf").replace(".INF", "inf"))
    return float("nan") if text in _NAN else text


def _place(mark: Any) -> Position:
    return Position(mark.line, mark.column) if mark else Position(0, 0)


def _end_of(text: str) -> Position:
    return Position(text.count("\n"), len(text) - text.rfind("\n") - 1)


def _syntax(error: yaml.MarkedYAMLError) -> str:
    # The name of a tag may be a part of a secret that begins with an exclamation mark.
    words = re.sub("(undefined tag handle).*", r"\1", " ".join(str(error.problem).split()))
    hint = next((f": {hint}" for part, hint in _HINTS.items() if part in words), "")
    return f"not valid YAML, {words}{hint}"
