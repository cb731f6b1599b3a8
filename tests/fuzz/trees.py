"""Documents for fuzzing: real ones as trees, whose values are replaced, duplicated and removed."""

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any, TypeAlias

from tests.fuzz.mutate import CHANGES, NUMBERS, Mutator

Spot: TypeAlias = tuple[Any, Any]
"""A mapping or list, and the key or index of a value in it."""

VALUES: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, 1e308, float("inf"), float("nan"), 1 << 64, -(1 << 70), 10**300),
    *("", " ", "a", "a b", "\n", "\0", "é", "\ud800", "\u2028", "x" * 5000, "*", "-", "=", "$retval"),
    "9" * 400,
    *([], {}, [[]], [{}], {"": {}}, {"a": [None]}, {1: 1}, [1, "a", None], ["a", "a"]),
)
DEEP = 30
"""Levels of nesting around a value, more than a document may have."""


class Trees:
    """Makes JSON, which is valid YAML, of changed ``documents``; inserts ``values`` and VALUES."""

    def __init__(self, documents: Sequence[object], values: Sequence[object] = ()) -> None:
        self._documents = tuple(documents)
        self._values = (*values, *VALUES)
        texts = [text for document in documents for text in _texts(document)]
        self._texts = Mutator([text.encode() for text in texts] or [b""], NUMBERS, longest=6000)

    def __call__(self, random: Random) -> bytes:
        """Return one document."""
        root = [copy.deepcopy(random.choice(self._documents))]
        for _ in range(random.choice(CHANGES)):
            self._change(random, root)
        return json.dumps(root[0], ensure_ascii=random.random() < 0.5, default=str).encode(
            errors="surrogatepass"
        )

    def _change(self, random: Random, root: list[Any]) -> None:
        spots = [(root, 0), *_spots(root[0])]
        holder, key = random.choice(spots)
        value = holder[key]
        kind = random.randrange(7)
        if kind == 0 and isinstance(value, str):
            holder[key] = self._texts.change(random, value.encode(errors="replace")).decode(errors="replace")
        elif kind == 1 and len(spots) > 1:
            other, place = random.choice(spots)
            holder[key] = copy.deepcopy(other[place])
        elif kind == 2 and holder is not root:
            del holder[key]
        elif kind == 3 and isinstance(holder, list) and holder is not root:
            holder.insert(key, copy.deepcopy(value))
        elif kind == 4 and isinstance(holder, dict):
            renamed = random.choice(self._values)
            holder[renamed if isinstance(renamed, str | int | float | None) else "a"] = holder.pop(key)
        elif kind == 5 and random.random() < 0.2:
            for _ in range(random.choice((1, 2, DEEP))):
                value = [value] if random.random() < 0.5 else {"a": value}
            holder[key] = value
        else:
            holder[key] = copy.deepcopy(random.choice(self._values))


def _spots(value: Any) -> list[Spot]:
    found: list[Spot] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        found += [(one, key) for key in keys]
        waiting += [one[key] for key in keys]
    return found


def _texts(document: object) -> list[str]:
    return [value for holder, key in _spots([document]) if isinstance(value := holder[key], str)]
