"""A section of a web configuration: its values by their keys, and the problems found in them."""

from collections.abc import Iterable
from typing import Any

from kprobe_exporter.config.wording import Path, nearest, quote
from kprobe_exporter.config.yaml_source import YamlSource
from kprobe_exporter.errors import Problem

# YAML 1.1, which the exporter-toolkit reads, has more words for booleans than our YAML reader.
_YES = frozenset("y yes on".split())
_NO = frozenset("n no off".split())


class Section:
    """The mapping at a path of the file, empty if absent. Keys that are not in ``known`` are refused.

    Problems are added to ``problems``, those of the whole file, and reading goes on.
    """

    def __init__(
        self, source: YamlSource, problems: list[Problem], path: Path, known: Iterable[str] | None
    ) -> None:
        self.problems = problems
        self._source, self._path = source, path
        found: Any = source.data
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        self.values: dict[Any, Any] = found if isinstance(found, dict) else {}
        if found is not None and not isinstance(found, dict):
            self.refuse("must be a mapping of KEY: VALUE")
        names = None if known is None else [*known]
        for key in self.values:
            if names is not None and key not in names:
                self.refuse(f"unknown key {quote(key)}{nearest(key, names)}", key, at_key=True)

    def refuse(self, message: str, *path: str | int, at_key: bool = False) -> None:
        """Record a problem with the section, with a value in it, or with the value's key."""
        self.problems.append(self._source.problem((*self._path, *path), message, at_key=at_key))

    def text(self, key: str) -> str | None:
        """Return the text of a key, or None if there is none."""
        found = self.values.get(key)
        if found is None or isinstance(found, str):
            return found
        self.refuse("must be text", key)
        return None

    def texts(self, key: str) -> list[str] | None:
        """Return the list of texts of a key, or None if there is none."""
        found = self.values.get(key)
        if found is None:
            return None
        if not isinstance(found, list):
            self.refuse("must be a list", key)
            return []
        for index, one in enumerate(found):
            if not isinstance(one, str):
                self.refuse("must be text", key, index)
        return [one for one in found if isinstance(one, str)]

    def words(self, key: str, known: Iterable[str], what: str) -> list[str]:
        """Return the list of words of a key, empty if there is none; ``what`` names what they must be."""
        words, names = self.texts(key) or [], [*known]
        for index, word in enumerate(words):
            if word not in names:
                self.refuse(f"{quote(word)} is no {what}{nearest(word, names)}", key, index)
        return [word for word in words if word in names]

    def flag(self, key: str, *, default: bool) -> bool:
        """Return the boolean of a key."""
        found = self.values.get(key)
        if found is None:
            return default
        word = found.lower() if isinstance(found, str) else ""
        if isinstance(found, bool) or word in _YES | _NO:
            return found is True or word in _YES
        self.refuse("must be true or false", key)
        return default
