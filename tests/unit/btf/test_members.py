"""Paths into structures: what each leads to in types that are made here, and how others are refused."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.btf.members import Member
from kprobe_exporter.btf.structures import Structures
from kprobe_exporter.btf.types import MANY, Types
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.members import is_path, parse_path
from tests.support.btf_samples import Blob, structures
from tests.support.kernel_formats import RELEASES, types

DATA = structures().data()
FAQ = Path(__file__).parents[3] / "docs/faq.md"


def resolve(text: str, written: str | None = None) -> Member:
    known = KernelTypes({"vmlinux": DATA}.__getitem__)
    return known.member(text, written, root=known.roots("", "f").get)


@pytest.mark.parametrize(
    ("path", "offsets", "fetch", "count", "network"),
    [
        ("sk->sk_cookie", (512,), "u64", None, 0),
        ("$arg1->sk_cookie", (512,), "u64", None, 0),
        ("sk->__sk_common.skc_dport", (12,), "u16", None, 2),
        ("sk->__sk_common.skc_num", (14,), "u16", None, 0),
        ("sk->__sk_common.skc_portpair", (12,), "u32", None, 0),
        ("sk->__sk_common.skc_daddr", (0,), "u32", None, 4),
        ("sk->__sk_common.skc_state", (18,), "u8", None, 0),
        ("sk->__sk_common.skc_reuse", (19,), "b4@0/8", None, 0),
        ("sk->__sk_common.skc_ipv6only", (19,), "b1@5/8", None, 0),
        ("sk->sk_state_enum", (136,), "u32", None, 0),
        ("sk->sk_user_data", (144,), "x64", None, 0),
        ("sk->sk_fn", (176,), "x64", None, 0),
        ("sk->sk_words", (152,), "u32", 4, 4),
        ("sk->sk_words[3]", (164,), "u32", None, 4),
        ("sk->sk_square[1][2]", (540,), "s32", None, 0),
        ("sk->sk_big[64]", (440,), "u32", None, 0),
        ("sk->sk_socket->type", (168, 4), "u16", None, 0),
        ("sk->sk_socket->sk->sk_cookie", (168, 8, 512), "u64", None, 0),
        ("tagged->sk_cookie", (512,), "u64", None, 0),
        ("$retval->disk_name", (12,), "string", None, 0),
        ("$retval->label", (64, 0), "string", None, 0),
        ("$retval->label[1]", (64, 1), "s8", None, 0),
        ("$retval->disk_name[31]", (43,), "s8", None, 0),
        ("disks[2]->label", (16, 64, 0), "string", None, 0),
        ("(sock)addr->sk_cookie", (512,), "u64", None, 0),
        ("((sk))->sk_cookie", (512,), "u64", None, 0),
        ("(sock)(addr)->sk_cookie", (512,), "u64", None, 0),
        ("(struct sock *)addr->sk_cookie", (512,), "u64", None, 0),
        ("(disk_t)sk->disk_name", (12,), "string", None, 0),
        ("(gendisk)(sk->sk_user_data)->disk_name", (144, 12), "string", None, 0),
        ("(socket)(sk->sk_cookie)->sk->sk_cookie", (512, 8, 512), "u64", None, 0),
        ("(gendisk)(sk->sk_user_data-20)->disk_name", (144, -8), "string", None, 0),
        ("(gendisk)(addr+0x10)->disk_name", (28,), "string", None, 0),
    ],
)
def test_a_path_leads_to_offsets_and_a_type(
    path: str, offsets: tuple[int, ...], fetch: str, count: int | None, network: int
) -> None:
    assert resolve(path)[:4] == (offsets, fetch, count, network)


@pytest.mark.parametrize(
    ("path", "written", "offsets", "fetch"),
    [
        ("sk->__sk_common.skc_dport", "x16", (12,), "x16"),
        ("sk->sk_user_data", "string", (144, 0), "string"),
        ("sk->sk_words", "string", (152,), "string"),
        ("sk->__sk_common", "u64", (0,), "u64"),
        ("$retval->label", "x64", (64,), "x64"),
        ("$retval->label", "ustring", (64, 0), "ustring"),
        ("sk->__sk_common.skc_signed", "b3@0/8", (20,), "b3@0/8"),
    ],
)
def test_a_written_type_replaces_that_of_the_member(
    path: str, written: str, offsets: tuple[int, ...], fetch: str
) -> None:
    assert resolve(path, written)[:4] == (offsets, fetch, None, 0)


def test_the_reads_go_from_the_root_to_the_value() -> None:
    expected = ("$arg1", "+168($arg1)", "+8(+168($arg1))", "+512(+8(+168($arg1)))")
    assert resolve("sk->sk_socket->sk->sk_cookie").reads("$arg1") == expected
    assert resolve("(gendisk)(addr-20)->disk_name").reads("$arg1") == ("$arg1", "-8($arg1)")


@pytest.mark.parametrize(
    ("path", "message", "column"),
    [
        (
            "sk->sk_coookie",
            "struct sock has no member 'sk_coookie', did you mean 'sk_cookie' or 'sk_socket'? It has "
            "__sk_common, sk_state_enum, sk_user_data, sk_words, sk_socket, sk_fn, sk_big, sk_cookie, "
            "sk_square",
            2,
        ),
        (
            "sk->skc_dport",
            "struct sock has no member 'skc_dport', did you mean '__sk_common.skc_dport' or "
            "'__sk_common.skc_prot'? It has __sk_common, sk_state_enum, sk_user_data, sk_words, sk_socket, "
            "sk_fn, sk_big, sk_cookie, sk_square",
            2,
        ),
        ("sk.sk_cookie", "sk is struct sock *, a pointer: write ->sk_cookie", 2),
        (
            "sk->__sk_common->skc_num",
            "sk->__sk_common is struct sock_common, no pointer: write .skc_num",
            15,
        ),
        ("sk->sk_cookie->x", "sk->sk_cookie is unsigned long, which has no members", 13),
        ("count->x", "count is int, which has no members", 5),
        (
            "addr->x",
            "addr is void *, which has no members: cast it, as (STRUCT)addr->x",
            4,
        ),
        (
            "sk->sk_user_data->x",
            "sk->sk_user_data is void *, which has no members: cast it, as (STRUCT)(sk->sk_user_data)->x",
            16,
        ),
        (
            "sk->__sk_common.skc_prot->name",
            "sk->__sk_common.skc_prot is struct proto *, which these types do not describe",
            24,
        ),
        (
            "sk->__sk_common.skc_reuse.x",
            "sk->__sk_common.skc_reuse is a bit field, which leads no further",
            25,
        ),
        (
            "sk->__sk_common.skc_signed",
            "sk->__sk_common.skc_signed is a bit field with a sign, which the kernel would ignore: write "
            "sk->__sk_common.skc_signed:b3@0/8 to read it without",
            0,
        ),
        (
            "sk->__sk_common.skc_wide",
            "sk->__sk_common.skc_wide is a bit field that the kernel cannot read",
            0,
        ),
        ("sk->__sk_common", "sk->__sk_common is struct sock_common: name one of its members", 0),
        (
            "sk->sk_big",
            "sk->sk_big is unsigned int [65]: only an array of 1 to 64 numbers can be read, name an element",
            0,
        ),
        ("sk->sk_words[4]", "sk->sk_words is __be32 [4], so its last element is [3]", 12),
        ("sk->sk_cookie[0]", "sk->sk_cookie is unsigned long, which has no elements", 13),
        ("addr[1]", "addr is void *, which has no elements", 4),
        ("sk->sk_words[x]", "'x' is not an index: write a constant number", 13),
        ("(sokc)addr->x", "these types have no structure 'sokc', did you mean 'sock' or 'socket'?", 1),
        ("(sock)count->sk_cookie", "count is int, no address that could be cast", 0),
        ("(sock)addr.sk_cookie", "addr is a pointer here: write ->sk_cookie", 10),
        ("(sock)addr", "a cast needs a member: write (STRUCT)VALUE->MEMBER", 10),
        ("(gendisk)(addr-65537)->label", "'65537' is not a number of bytes: write at most 65536", 15),
        ("(addr-4)->label", "this must end with ')'", 5),
        ("skb->len", "the type of skb is not known: cast it, as (STRUCT)skb->MEMBER", 0),
        ("sk->sk_cookie+1", "'+1' is not a step: write ->MEMBER, .MEMBER or [INDEX]", 13),
        ("(sock)(addr->x", "this must end with ')'", 14),
        ("->x", "a path begins with a parameter's name, $argN or $retval", 0),
    ],
)
def test_a_wrong_path_is_refused_in_one_sentence(path: str, message: str, column: int) -> None:
    with pytest.raises(GrammarError) as refused:
        resolve(path)
    assert (refused.value.message, refused.value.column) == (message, column)


def test_a_number_is_no_string() -> None:
    with pytest.raises(GrammarError, match="sk->sk_cookie is unsigned long, which is no string"):
        resolve("sk->sk_cookie", "string")


def test_a_pointer_is_no_bit_field() -> None:
    blob = Blob()
    blob.struct("odd", 8, ("p", blob.to(0), 8 << 24), bits=True)
    known = KernelTypes({"vmlinux": blob.data()}.__getitem__)
    with pytest.raises(GrammarError, match="p is a bit field of void \\*, which is not a number"):
        known.member("(odd)x->p")


def test_a_bit_field_of_older_types_is_known_by_its_int() -> None:
    """Without kind_flag the int has the field's width, and may begin after the member's offset."""
    blob = Blob()
    narrow = blob.add(1, "unsigned int", 4, 3 << 16 | 5)
    blob.struct("old", 4, ("flags", narrow, 8))
    known = KernelTypes({"vmlinux": blob.data()}.__getitem__)
    assert known.member("(old)x->flags")[:2] == ((1,), "b5@3/8")


def test_a_module_has_its_own_types_and_those_of_the_kernel() -> None:
    base = structures()
    blob = Blob(base)
    (sock,) = Structures(Types(base.data())).named("sock")
    mine = blob.struct("mine", 16, ("sk", blob.to(sock), 64))
    blob.function("g", 0, ("m", blob.to(mine)))
    read = {"vmlinux": base.data(), "ext": blob.data()}
    known = KernelTypes(read.__getitem__)
    roots = known.roots("ext", "g")
    assert known.member("m->sk->sk_cookie", module="ext", root=roots.get).offsets == (8, 512)
    assert known.member("(mine)x->sk->sk_cookie", module="ext").offsets == (8, 512)
    with pytest.raises(GrammarError, match="no structure 'mine'"):
        known.member("(mine)x->sk")


def test_a_cast_to_a_type_of_a_module() -> None:
    """The same name is a structure of the kernel, of one module and of another, each with its layout."""
    base = Blob()
    u64 = base.int_("u64", 64)
    base.struct("slot", 8, ("number", u64, 0))
    mine, other = Blob(base), Blob(base)
    inner = mine.struct("inner", 24, ("value", u64, 128))
    mine.struct("slot", 16, ("number", u64, 64), ("inner", mine.to(inner), 0))
    other.int_("odd", 8)  # so that the modules number their types differently
    other.struct("slot", 32, ("number", u64, 192))
    known = KernelTypes({"vmlinux": base.data(), "mine": mine.data(), "other": other.data()}.__getitem__)
    for path, offsets in {
        "(slot)x->number": (0,),
        "(mine:slot)x->number": (8,),
        "(other:slot)x->number": (24,),
        "(mine:slot)x->inner->value": (0, 16),
        "(other:slot)((mine:slot)x->number)->number": (8, 24),
        "(vmlinux:slot)((mine:slot)x->number)->number": (8, 0),
    }.items():
        assert known.member(path).offsets == offsets, path
    assert known.member("(vmlinux:slot)x->number", module="mine").offsets == (0,)
    with pytest.raises(GrammarError, match=r"no structure 'mine:slott', did you mean 'slot'"):
        known.member("(mine:slott)x->number")
    with pytest.raises(GrammarError, match=r"there are no types of the module none \(is it loaded\?\)"):
        KernelTypes(mapped({"vmlinux": base.data()})).member("(none:slot)x->number")


def test_a_cast_to_the_kernel_needs_no_types_of_the_module() -> None:
    """A function of a module that is not loaded yet has arguments of the kernel's types."""
    base = Blob()
    base.struct("slot", 8, ("number", base.int_("u64", 64), 0))
    known = KernelTypes(mapped({"vmlinux": base.data()}))
    assert known.member("(vmlinux:slot)$arg1->number", module="ext4").offsets == (0,)
    with pytest.raises(GrammarError, match="there are no types of the module ext4"):
        known.member("(slot)$arg1->number", module="ext4")


def mapped(data: Mapping[str, bytes]) -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        if name not in data:
            raise FileNotFoundError(name)
        return data[name]

    return read


def test_a_cast_to_a_name_of_several_structures() -> None:
    """What all of them say is taken, and what only one has; else the path is refused with the candidates."""
    blob = Blob()
    u32, u64 = blob.int_("u32", 32), blob.int_("u64", 64)
    blob.struct("slot", 16, ("number", u32, 0), ("same", u64, 64))
    blob.struct("slot", 24, ("number", u64, 0), ("same", u64, 64), ("own", u32, 128))
    known = KernelTypes({"vmlinux": blob.data()}.__getitem__)
    assert known.member("(slot)x->same").offsets == (8,)
    assert known.member("(slot)x->own").offsets == (16,)
    with pytest.raises(GrammarError) as raised:
        known.member("(slot)x->number")
    assert raised.value.message == (
        "these types have 2 structures 'slot', whose 'number' is u32 at byte 0 or u64 at byte 0: read it by "
        "its offset"
    )
    with pytest.raises(GrammarError, match="has no member 'none'"):
        known.member("(slot)x->none")


def test_a_modules_structure_hides_that_of_the_kernel() -> None:
    base = structures()
    blob = Blob(base)
    blob.struct("sock", 8, ("sk_cookie", blob.int_("u64", 64), 0))
    known = KernelTypes({"vmlinux": base.data(), "ext": blob.data()}.__getitem__)
    assert known.member("(sock)x->sk_cookie", module="ext").offsets == (0,)
    assert known.member("(sock)x->sk_cookie").offsets == (512,)


@pytest.mark.parametrize("release", RELEASES)
def test_names_of_several_structures_of_real_kernels(release: str) -> None:
    known = types(release)
    with pytest.raises(GrammarError, match="have 2 structures 'disklabel', whose 'd_magic' is") as raised:
        known.member("(disklabel)x->d_magic")
    assert "__le32 at byte 0" in raised.value.message
    assert "__le16 at byte 510" in raised.value.message
    assert known.member("(dma_chan)x->cookie").fetch == "s32"


def absent(name: str) -> bytes:
    raise FileNotFoundError(name)


def test_missing_types_are_named() -> None:
    with pytest.raises(GrammarError, match=r"this kernel has no BTF \(CONFIG_DEBUG_INFO_BTF\)"):
        KernelTypes(absent).member("(sock)x->sk")

    def only_the_kernel(name: str) -> bytes:
        return DATA if name == "vmlinux" else absent(name)

    with pytest.raises(GrammarError, match=r"no types of the module ext \(is it loaded\?\)"):
        KernelTypes(only_the_kernel).member("(sock)x->sk", module="ext")
    with pytest.raises(GrammarError, match="the types of h's parameters are not known: BTF has no function"):
        KernelTypes(only_the_kernel).roots("", "h")


def test_types_are_read_once_and_only_when_needed() -> None:
    read: list[str] = []

    def counted(name: str) -> bytes:
        read.append(name)
        return DATA

    known = KernelTypes(counted)
    assert not read
    known.member("(sock)x->sk_cookie")
    known.member("(sock)x->sk_fn")
    assert read == ["vmlinux"]


def test_what_many_members_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The types are walked once for all functions, and a structure is read once for all paths."""
    blob, functions = structures(), [f"f{number}" for number in range(MANY + 1)]
    (sock,) = Structures(Types(blob.data())).named("sock")
    for name in functions:
        blob.function(name, 0, ("sk", blob.to(sock)))
    data, done = blob.data(), Counter[str]()

    def counted(owner: type, name: str) -> None:
        plain = getattr(owner, name)

        def count(*given: Any) -> Any:
            done[name] += 1
            return plain(*given)

        monkeypatch.setattr(owner, name, count)

    for owner, name in ((Types, "_walk"), (Types, "find"), (Structures, "_declared")):
        counted(owner, name)
    known = KernelTypes({"vmlinux": data}.__getitem__)
    assert known.prototypes(functions).keys() == set(functions)
    known.member("(sock)sk->sk_cookie", root=known.roots("", "f0").get)
    once = done.copy()
    assert (once["_walk"], once["find"]) == (1, 1)
    for name in functions:
        for path in ("(sock)sk->sk_cookie", "sk->sk_cookie", "(sock)sk->sk_fn"):
            known.member(path, root=known.roots("", name).get)
    assert done == once


@given(st.binary(min_size=1, max_size=60), st.integers(24, len(DATA) - 1))
def test_damaged_types_raise_nothing_else(noise: bytes, at: int) -> None:
    damaged = (DATA[:at] + noise + DATA[at + len(noise) :])[: len(DATA)]
    known = KernelTypes(lambda name: damaged)
    for text in (
        "sk->sk_socket->sk->sk_cookie",
        "sk->sk_words",
        "(gendisk)addr->label",
        "sk->sk_square[1][1]",
    ):
        try:
            found = known.member(text, root=known.roots("", "f").get)
        except GrammarError:
            continue
        assert all(0 <= offset < 1 << 64 for offset in found.offsets)


STEPS = st.lists(st.from_regex(r"(->|\.)[a-z_]{1,5}|\[[0-9]\]", fullmatch=True), min_size=1, max_size=4)


@given(st.sampled_from(["sk", "$arg2", "(sock)sk", "(sock)(a->b[1])"]), STEPS)
def test_a_parsed_path_is_written_as_it_was_read(base: str, steps: list[str]) -> None:
    text = base + "".join(steps)
    assert str(parse_path(text)) == text
    assert is_path(text)


@given(st.text("sk->.[]()_$1 *ab", max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    with suppress(GrammarError):
        assert parse_path(text).steps


@pytest.mark.parametrize("text", ["sk->a", "sk.a", "a[1]", "(b)sk->a", "$retval->a", "(b)(c->d)->e"])
def test_what_is_a_path(text: str) -> None:
    assert is_path(text)


@pytest.mark.parametrize(
    "text", ["$arg1", "+0($arg1)", "@jiffies", "%di", "filename", "\\1", "@a.b+1", "-8(%sp)"]
)
def test_what_is_no_path(text: str) -> None:
    assert not is_path(text)


def test_a_pointer_is_not_read_as_a_bit_field() -> None:
    with pytest.raises(GrammarError) as refused:
        resolve("sk->sk_user_data", "b4@0/64")
    sentence = "sk->sk_user_data is void *, an address, which has no bit field: read it as x64"
    assert (refused.value.message, refused.value.column) == (sentence, len("sk->sk_user_data"))


def test_the_questions_show_the_message_for_a_misspelt_member() -> None:
    """In docs/faq.md, the path begins at column 13."""
    with pytest.raises(GrammarError) as refused:
        types("6.12").member("sk->skc_dport", root=lambda _: types("6.12").roots("", "tcp_connect")["sk"])
    shown, _, _ = refused.value.message.partition(", skc_")
    first = f"c.yaml:6:{13 + refused.value.column}: {shown.partition(' It has __sk_common, ')[0]}"
    assert f"{first} It has __sk_common, …\n" in FAQ.read_text()


def test_a_cast_needs_no_type_of_what_it_casts() -> None:
    """BTF has no function h, as it lacks many that are static."""
    known = KernelTypes({"vmlinux": DATA}.__getitem__)

    def root(name: str) -> int | None:
        return known.roots("", "h").get(name)

    assert known.member("(sock)$arg1->sk_cookie", root=root).offsets == (512,)
    with pytest.raises(GrammarError, match="the types of h's parameters are not known"):
        known.member("$arg1->sk_cookie", root=root)
