"""The mutators: a seed always gives the same input, inputs differ, have a limited length, and vary widely."""

import json
from collections import Counter
from random import Random

import pytest
import yaml

from tests.fuzz.mutate import CHANGES, KINDS, Mutator
from tests.fuzz.trees import Trees

MATERIAL = (b"first 12 line\nsecond 345 line\n", b"\x7fELF\x00\x01\x02", b"")
DOCUMENT = {"probes": [{"name": "p", "attach": ["kprobe:f", "kprobe:g"], "limit": 5}], "global": {"x": None}}
SEEDS = range(300)


@pytest.mark.parametrize("make", [Mutator(MATERIAL, [b"WORD"]), Trees([DOCUMENT], ["WORD"])])
def test_a_seed_gives_one_input(make: Mutator | Trees) -> None:
    inputs = [make(Random(seed)) for seed in SEEDS]
    assert inputs == [make(Random(seed)) for seed in SEEDS]
    assert len(set(inputs)) > len(SEEDS) // 2
    assert any(b"WORD" in made for made in inputs)


def test_some_inputs_are_the_material_itself() -> None:
    made = Counter(Mutator(MATERIAL)(Random(seed)) for seed in range(1000))
    assert all(made[piece] >= 1000 / len(CHANGES) / len(MATERIAL) / 3 for piece in MATERIAL)


def test_pieces_are_put_together() -> None:
    inputs = [Mutator(MATERIAL)(Random(seed)) for seed in range(2000)]
    assert any(b"second" in made and b"ELF" in made for made in inputs)


@pytest.mark.parametrize("change", KINDS, ids=lambda change: change.__name__)
@pytest.mark.parametrize("data", [b"", b"x", b"one 23 four\n" * 30])
def test_every_change_takes_any_bytes(change: "object", data: bytes) -> None:
    mutator = Mutator(MATERIAL)
    assert callable(change)
    changed = set()
    for seed in SEEDS:
        copy = bytearray(data)
        change(Random(seed), copy, mutator)
        changed.add(bytes(copy))
    assert not data or len(changed - {data}) > 1 or len(data) == 1


def test_an_input_is_not_longer_than_it_may_be() -> None:
    short = Mutator([b"x" * 500], [b"y" * 5000], longest=600)
    assert max(len(short(Random(seed))) for seed in range(2000)) == 600


def test_documents_are_json_and_yaml_whatever_is_in_them() -> None:
    trees, read = Trees([DOCUMENT]), 0
    for seed in SEEDS:
        made = trees(Random(seed))
        json.loads(made.decode(errors="surrogatepass"))
        try:
            read += isinstance(yaml.safe_load(made), dict)
        except (yaml.YAMLError, UnicodeDecodeError, ValueError, TypeError):
            continue
    assert read > len(SEEDS) // 2


def test_a_document_is_not_changed_itself() -> None:
    before = json.dumps(DOCUMENT)
    trees = Trees([DOCUMENT])
    for seed in SEEDS:
        trees(Random(seed))
    assert json.dumps(DOCUMENT) == before
