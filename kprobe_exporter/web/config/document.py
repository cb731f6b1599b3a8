"""A web configuration as a document: its values by their paths, and the problems found in them."""

from collections.abc import Iterable
from typing import Any

from kprobe_exporter.config.wording import Path, nearest, quote
from kprobe_exporter.config.yaml_source import YamlSource

# YAML 1.1, which the exporter-toolkit reads, has more words for booleans than our YAML reader.
_YES = frozenset("y yes on".split())
_NO = frozenset("n no off".split())


class WebDocument:
    """One file. Problems are collected in ``problems`` with their positions, and reading goes on."""

    def __init__(self, source: YamlSource) -> None:
        self._source = source
        self.problems = list(source.duplicates)

    def mapping(self, path: Path, known: Iterable[str] | None) -> dict[Any, Any]:
        """Return the mapping at a path, empty if absent. Keys that are not in ``known`` are refused."""
        found = self._at(path)
        if found is None:
            return {}
        if not isinstance(found, dict):
            self.refuse(path, "must be a mapping of KEY: VALUE")
            return {}
        names = None if known is None else [*known]
        for key in found:
            if names is not None and key not in names:
                sentence = f"unknown key {quote(key)}{nearest(key, names)}"
                self.refuse((*path, key), sentence, at_key=True)
        return found

    def _at(self, path: Path) -> Any:
        found = self._source.data
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        return found

    def text(self, path: Path) -> str | None:
        """Return the text at a path, or None if there is none."""
        found = self._at(path)
        if found is None or isinstance(found, str):
            return found
        self.refuse(path, "must be text")
        return None

    def texts(self, path: Path) -> list[str] | None:
        """Return the list of texts at a path, or None if there is none."""
        found = self._at(path)
        if found is None:
            return None
        if not isinstance(found, list):
            self.refuse(path, "must be a list")
            return []
        for index, one in enumerate(found):
            if not isinstance(one, str):
                self.refuse((*path, index), "must be text")
        return [one for one in found if isinstance(one, str)]

    def words(self, path: Path, known: Iterable[str], what: str) -> list[str]:
        """Return the list of words at a path, empty if there is none; ``what`` names what they must be."""
        words, names = self.texts(path) or [], [*known]
        for index, word in enumerate(words):
            if word not in names:
                self.refuse((*path, index), f"{quote(word)} is no {what}{nearest(word, names)}")
        return [word for word in words if word in names]

    def flag(self, path: Path, *, default: bool) -> bool:
        """Return the boolean at a path."""
        found = self._at(path)
        if found is None:
            return default
        word = found.lower() if isinstance(found, str) else ""
        if isinstance(found, bool) or word in _YES | _NO:
            return found is True or word in _YES
        self.refuse(path, "must be true or false")
        return default

    def refuse(self, path: Path, message: str, *, at_key: bool = False) -> None:
        """Record a problem with the value at a path, or with its key."""
        self.problems.append(self._source.problem(path, message, at_key=at_key))
