"""Enumerators: of types that are made here, and of the saved kernels."""

import pytest

from kprobe_exporter.btf.enums import constants, enumerators, is_signed
from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.btf.structures import Structures
from kprobe_exporter.btf.types import ENUM, ENUM64, TYPEDEF, Types
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.model.values import enumerator
from tests.support.btf_samples import Blob
from tests.support.kernel_formats import RELEASES, saved, types


def enum(blob: Blob, name: str, *values: tuple[str, int], signed: bool = False) -> int:
    words = [word for text, value in values for word in (blob.string(text), value)]
    return blob.add(ENUM, name, 4, *words, vlen=len(values), flag=signed)


def sample(base: Blob | None = None) -> Blob:
    blob = Blob(base)
    enum(blob, "drop_reason", ("NOT_DROPPED", 0), ("DROP_REASON_CSUM", 2), ("DROP_REASON_MAX", 2))
    enum(blob, "level", ("LOW", -1), ("HIGH", 1), signed=True)
    enum(blob, "old", ("BEHIND", -2))
    blob.add(TYPEDEF, "level_t", enum(blob, "", ("ANON", 7)))
    blob.add(ENUM64, "wide", 8, blob.string("TOP"), 0, 1 << 31, vlen=1)
    return blob


def test_an_enums_names_without_its_own_in_front() -> None:
    read = Types(sample().data())
    assert enumerators(read, "drop_reason") == {0: "NOT_DROPPED", 2: "CSUM"}
    assert enumerators(read, "level") == {-1: "LOW", 1: "HIGH"}
    assert enumerators(read, "level_t") == {7: "ANON"}
    assert enumerators(read, "wide") == {1 << 63: "TOP"}
    assert enumerators(read, "no_such") is None


def test_constants_of_any_enum() -> None:
    read = Types(sample().data())
    assert constants(read, {"LOW", "ANON", "TOP", "NO_SUCH"}) == {"LOW": -1, "ANON": 7, "TOP": 1 << 63}


@pytest.mark.parametrize("value", [-2, 2**32 - 2])
def test_a_negative_value_is_found_whichever_side_lost_the_sign(value: int) -> None:
    for names in ({-2: "BEHIND"}, {2**32 - 2: "BEHIND"}):
        assert enumerator(names, value) == "BEHIND"
    assert enumerator({-1: "LOW"}, value) is None


@pytest.mark.parametrize("release", RELEASES)
def test_signs_of_enums(release: str) -> None:
    """5.10 marks none, and its values tell. The large value of e820_type is no sign."""
    read = Types(saved(release)["sys/kernel/btf/vmlinux"])
    assert read.marks_signs == (release != "5.10")
    for name, fetch in (("perf_event_state", "s32"), ("cpuhp_state", "s32"), ("e820_type", "u32")):
        (number,) = read.find(name, (ENUM,))
        assert Structures(read).number(number) == fetch, name
    member = types(release).member("(perf_event)$arg1->state")
    assert member.fetch == "s32"


@pytest.mark.parametrize("release", [one for one in RELEASES if one != "5.10"])
def test_signs_that_are_not_marked_agree_with_those_that_are(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Types(saved(release)["sys/kernel/btf/vmlinux"])
    monkeypatch.setattr(Types, "marks_signs", False)
    enums = [read.record(number) for number in read.numbers((ENUM,))]
    guessed = [is_signed(read, one._replace(flag=False)) for one in enums]
    wrong = [one for one, sign in zip(enums, guessed, strict=True) if sign != one.flag]
    assert len(wrong) <= 8
    assert len(enums) > 1800


def test_a_modules_enum_is_found_and_a_misspelt_one_has_a_sentence() -> None:
    kernel = sample()
    module = Blob(kernel)
    enum(module, "module_state", ("MODULE_STATE_ON", 1))
    files = {"vmlinux": kernel.data(), "ext": module.data()}
    found = KernelTypes(files.__getitem__, lambda: sorted(files))
    assert found.enumerators("module_state") == {1: "ON"}
    assert found.constants(frozenset({"MODULE_STATE_ON"})) == {"MODULE_STATE_ON": 1}
    assert found.words("no_such") == {}
    with pytest.raises(GrammarError, match=r"no enum 'drop_reasn', did you mean 'drop_reason'\?"):
        found.enumerators("drop_reasn")


def test_without_types_there_are_no_names() -> None:
    def absent(name: str) -> bytes:
        raise FileNotFoundError(name)

    found = KernelTypes(absent)
    assert found.words("drop_reason") == {}
    assert found.constants(frozenset({"LOW"})) == {}
    with pytest.raises(GrammarError, match="this kernel has no BTF"):
        found.enumerators("drop_reason")


def test_a_drop_reason_has_its_name_on_every_kernel_with_the_enum() -> None:
    for release in RELEASES[1:]:
        assert "NO_SOCKET" in types(release).enumerators("skb_drop_reason").values()
