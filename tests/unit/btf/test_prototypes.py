"""Prototypes from BTF: every kind of type, damaged files, and files made word by word here."""

import re
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.btf.kernel_types import KernelTypes
from kprobe_exporter.btf.prototypes import Param, Prototype, Type, parameter
from kprobe_exporter.btf.types import (
    ARRAY,
    CONST,
    DATASEC,
    DECL_TAG,
    ENUM,
    ENUM64,
    FLOAT,
    FUNC,
    FUNC_PROTO,
    FWD,
    MANY,
    PTR,
    RESTRICT,
    STRUCT,
    TYPE_TAG,
    TYPEDEF,
    UNION,
    VAR,
    VOLATILE,
)
from kprobe_exporter.errors import GrammarError
from tests.support.btf_samples import (
    BOOL,
    CHAR,
    SAMPLE,
    SIGNED,
    UNKNOWN,
    Blob,
    read_prototypes,
    sample,
    with_an_unknown_type,
    words_of,
)


def of(blob: Blob, returns: int, *params: tuple[str, int]) -> Prototype:
    """Return the prototype of a function with these types, as it is read back."""
    name = f"f{blob.count}"
    blob.function(name, returns, *params)
    return read_prototypes(blob.data(), [name])[name]


def returned(blob: Blob, number: int) -> Type:
    return of(blob, number).returns


def pointer(name: str) -> Type:
    return Type(name, "x64", pointer=True)


class TestKinds:
    @pytest.mark.parametrize(
        ("name", "bits", "encoding", "expected"),
        [
            ("int", 32, SIGNED, Type("int", "s32", signed=True)),
            ("unsigned int", 32, 0, Type("unsigned int", "u32")),
            ("long int", 64, SIGNED, Type("long", "s64", signed=True)),
            ("long", 64, SIGNED, Type("long", "s64", signed=True)),
            ("long unsigned int", 64, 0, Type("unsigned long", "u64")),
            ("long long int", 64, SIGNED, Type("long long", "s64", signed=True)),
            ("long long unsigned int", 64, 0, Type("unsigned long long", "u64")),
            ("short int", 16, SIGNED, Type("short", "s16", signed=True)),
            ("short unsigned int", 16, 0, Type("unsigned short", "u16")),
            ("char", 8, SIGNED | CHAR, Type("char", "s8", signed=True)),
            ("unsigned char", 8, 0, Type("unsigned char", "u8")),
            ("_Bool", 8, BOOL, Type("bool", "u8")),
            ("__int128", 128, SIGNED, Type("__int128", None)),
            ("odd", 24, 0, Type("odd", None)),
        ],
    )
    def test_int(self, name: str, bits: int, encoding: int, expected: Type) -> None:
        blob = Blob()
        assert returned(blob, blob.int_(name, bits, encoding)) == expected

    def test_void(self) -> None:
        assert returned(Blob(), 0) == Type("void", None)

    def test_pointers(self) -> None:
        blob = Blob()
        file = blob.add(STRUCT, "file", 232, vlen=0)
        for name, number in {
            "struct file *": blob.to(file),
            "struct file **": blob.to(file, PTR, PTR),
            "void *": blob.to(0),
            "const void *": blob.to(0, CONST, PTR),
            "const struct file *const *": blob.to(file, CONST, PTR, CONST, PTR),
            "volatile struct file *": blob.to(file, VOLATILE, PTR),
            "struct file *restrict": blob.to(file, PTR, RESTRICT),
            "const volatile void *": blob.to(0, VOLATILE, CONST, PTR),
            "union u *": blob.to(blob.add(FWD, "u", 0, flag=True)),
            "struct s *": blob.to(blob.add(FWD, "s", 0)),
            "struct {...} *": blob.to(blob.add(STRUCT, "", 4)),
            "union {...} *": blob.to(blob.add(UNION, "", 4)),
            "int (*)[4]": blob.to(blob.add(ARRAY, "", 0, blob.int_("int", 32, SIGNED), 0, 4)),
        }.items():
            assert returned(blob, number) == pointer(name)

    def test_a_tag_is_not_spelled(self) -> None:
        blob = Blob()
        user = blob.add(TYPE_TAG, "user", blob.int_("char", 8, SIGNED))
        assert returned(blob, blob.to(user)) == pointer("char *")

    def test_functions_as_arguments(self) -> None:
        blob = Blob()
        number = blob.int_("int", 32, SIGNED)
        callback = blob.proto(0, ("work", blob.to(blob.add(STRUCT, "work_struct", 32))), ("n", number))
        inner = blob.proto(blob.to(blob.proto(number)), ("", 0))
        pages = blob.add(ARRAY, "", 0, blob.to(callback), number, 2)
        found = of(
            blob,
            0,
            ("function", blob.to(callback)),
            ("table", blob.to(pages)),
            ("nested", blob.to(inner)),
            ("typedef", blob.to(blob.add(TYPEDEF, "callback_t", callback))),
        )
        assert [param.type for param in found.params] == [
            pointer("void (*)(struct work_struct *, int)"),
            pointer("void (*(*)[2])(struct work_struct *, int)"),
            pointer("int (*(*)(...))(void)"),
            pointer("callback_t *"),
        ]

    def test_typedef(self) -> None:
        blob = Blob()
        long = blob.int_("long int", 64, SIGNED)
        ssize = blob.add(TYPEDEF, "ssize_t", blob.add(TYPEDEF, "__kernel_ssize_t", long))
        assert returned(blob, ssize) == Type("ssize_t", "s64", signed=True)
        assert returned(blob, blob.add(TYPEDEF, "opaque_t", blob.to(0))) == pointer("opaque_t")
        assert returned(blob, blob.add(TYPEDEF, "nothing_t", 0)) == Type("nothing_t", None)
        assert returned(blob, blob.to(ssize, CONST)) == Type("const ssize_t", "s64", signed=True)

    @pytest.mark.parametrize(
        ("kind", "size", "signed", "expected"),
        [
            (ENUM, 4, False, Type("enum e", "u32")),
            (ENUM, 4, True, Type("enum e", "s32", signed=True)),
            (ENUM, 1, False, Type("enum e", "u8")),
            (ENUM64, 8, False, Type("enum e", "u64")),
            (ENUM64, 8, True, Type("enum e", "s64", signed=True)),
            (ENUM64, 3, True, Type("enum e", None)),
        ],
    )
    def test_enums(self, kind: int, size: int, signed: bool, expected: Type) -> None:
        blob = Blob()
        members = (1, -signed) if kind == ENUM else (1, -signed, -signed)
        number = blob.add(kind, "e", size, *members, *members, vlen=2, flag=signed)
        assert returned(blob, number) == expected
        assert returned(blob, blob.add(kind, "", size, flag=signed)).name == "enum {...}"

    def test_what_has_no_number_in_one_register(self) -> None:
        blob = Blob()
        blob.string("x")
        for number, name in {
            blob.add(STRUCT, "kuid", 4, 1, 1, 0, vlen=1): "struct kuid",
            blob.add(UNION, "u", 8): "union u",
            blob.add(FLOAT, "double", 8): "double",
            blob.add(FWD, "later", 0): "struct later",
            blob.add(ARRAY, "", 0, blob.int_("int", 32, SIGNED), 1, 3): "int [3]",
        }.items():
            assert returned(blob, number) == Type(name, None)

    def test_kinds_that_no_prototype_has_are_passed_over(self) -> None:
        blob = Blob()
        number = blob.int_("int", 32, SIGNED)
        variable = blob.add(VAR, "jiffies", number, 1)
        blob.add(DATASEC, ".data", 8, variable, 0, 4, variable, 4, 4, vlen=2)
        blob.add(DECL_TAG, "kfunc", variable, -1)
        blob.add(STRUCT, "s", 8, 1, number, 0, 1, number, 32, vlen=2, flag=True)
        blob.add(ENUM64, "e", 8, 1, 0, 0, vlen=1)
        assert returned(blob, number).name == "int"

    def test_more_members_than_16_bits_count(self) -> None:
        blob = Blob()
        blob.add(ENUM, "large", 4, *(0,) * 2 * 70_000, vlen=70_000)
        assert returned(blob, blob.int_("int", 32, SIGNED)).name == "int"


class TestNames:
    def test_only_the_wanted(self) -> None:
        blob = Blob()
        for name in ("read", "vfs_read", "write", "x.isra.0"):
            blob.function(name, 0)
        data = blob.data()
        assert set(read_prototypes(data, ["read", "x.isra.0", "absent", "", "a b", "\ud800"])) == {
            "read",
            "x.isra.0",
        }
        assert read_prototypes(data, ["read\0vfs_read", "\0read"]) == {}
        assert read_prototypes(data, []) == {}

    def test_a_name_may_be_the_end_of_another(self) -> None:
        blob = Blob()
        end = blob.string("vfs_read") + len("vfs_")
        blob.add(FUNC, end, blob.proto(0))
        assert set(read_prototypes(blob.data(), ["read", "vfs_read", "ead"])) == {"read"}

    def test_what_is_no_function_is_not_found(self) -> None:
        """A struct member whose words look like those of a function is not found."""
        blob = Blob()
        name = blob.string("f")
        blob.add(STRUCT, "s", 8, name, FUNC << 24, blob.proto(0), vlen=1)
        assert read_prototypes(blob.data(), ["f", "s"]) == {}

    def test_of_two_functions_with_one_name(self) -> None:
        blob = Blob()
        number = blob.int_("int", 32, SIGNED)
        blob.function("same", number, ("a", number))
        blob.function("same", number, ("a", blob.int_("int", 32, SIGNED)), linkage=1)
        blob.function("other", number)
        blob.function("other", 0, linkage=2)
        for _ in range(100):
            blob.function("many", number)
        assert set(read_prototypes(blob.data(), ["same", "other", "many"])) == {"same"}

    def test_unusual_characters_are_escaped(self) -> None:
        blob = Blob()
        assert returned(blob, blob.add(TYPEDEF, "ü\x1b", 0)).name == "\\xc3\\xbc\x1b"


class TestModule:
    def test_it_continues_the_kernel(self) -> None:
        kernel = Blob()
        number = kernel.int_("int", 32, SIGNED)
        kernel.function("start", number)
        kernel.function("kernel_only", number)
        module = Blob(kernel)
        own = module.to(module.add(STRUCT, "own", 8))
        assert own == 7
        module.function("start", own, ("n", number))
        module.function("kept", number, ("own", own))
        found = read_prototypes(module.data(), ["start", "kept", "kernel_only"], kernel.data())
        assert found == {
            "start": Prototype(
                "start", (Param("n", Type("int", "s32", signed=True), 1),), pointer("struct own *")
            ),
            "kept": Prototype(
                "kept", (Param("own", pointer("struct own *"), 1),), Type("int", "s32", signed=True)
            ),
        }

    def test_without_strings_of_its_own(self) -> None:
        kernel = Blob()
        kernel.function("f", 0)
        module = Blob(kernel)
        module.function("f", 0)
        assert module.strings == b""
        assert set(read_prototypes(module.data(), ["f"], kernel.data())) == {"f"}

    def test_it_means_nothing_without_the_kernel(self) -> None:
        kernel = Blob()
        number = kernel.int_("int", 32, SIGNED)
        module = Blob(kernel)
        module.function("f", number)
        assert read_prototypes(module.data(), ["f"]) == {}


class TestRegisters:
    def test_parameter(self) -> None:
        blob = Blob()
        size = blob.add(TYPEDEF, "size_t", blob.int_("long unsigned int", 64))
        found = of(blob, size, ("file", blob.to(0)), ("count", size), ("", 0))
        assert parameter(found, "count") == (2, Type("size_t", "u64"))
        assert parameter(found, "file") == (1, pointer("void *"))
        assert parameter(found, "absent") is None
        assert parameter(found, "") is None
        assert found.params[2] == Param("", Type("...", None), None)

    @pytest.mark.parametrize(
        ("kind", "size", "number"), [(STRUCT, 8, 2), (STRUCT, 16, None), (STRUCT, 0, None), (FLOAT, 8, None)]
    )
    def test_after_a_value_that_is_no_number(self, kind: int, size: int, number: int | None) -> None:
        blob = Blob()
        int_ = blob.int_("int", 32, SIGNED)
        found = of(blob, 0, ("value", blob.add(TYPEDEF, "t", blob.add(kind, "x", size))), ("after", int_))
        assert [param.number for param in found.params] == [number and 1, number]
        assert parameter(found, "after") == (number and (number, Type("int", "s32", signed=True)))


HEADER = 24

INFOS = st.builds(
    lambda kind, vlen, flag: flag << 31 | kind << 24 | vlen, *map(st.integers, [1, 0, 0], [19, 3, 1])
)
"""Words that look like the ``info`` of a type."""


class TestDamaged:
    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"", "shorter than its header"),
            (SAMPLE[:23], "shorter than its header"),
            (SAMPLE[:-1], "shorter than its header says"),
            (bytes([SAMPLE[1], SAMPLE[0]]) + SAMPLE[2:], "another byte order"),
            (b"\x7fELF" + SAMPLE[4:], "0x457f and version 76"),
            (SAMPLE[:2] + b"\2" + SAMPLE[3:], "version 2"),
            (SAMPLE[:4] + words_of(8) + SAMPLE[8:], "its header has 8 bytes"),
            (SAMPLE[:4] + words_of(1 << 31) + SAMPLE[8:], "shorter than its header says"),
            (SAMPLE[:12] + words_of(0xFFFFFFFF) + SAMPLE[16:], "shorter than its header says"),
            (SAMPLE[:12] + words_of(13) + SAMPLE[16:], "do not end where they should"),
            (SAMPLE[:20] + words_of(0) + SAMPLE[24:], "do not end where they should"),
            (SAMPLE[:-1] + b"x", "do not end where they should"),
            (SAMPLE[:12] + words_of(4) + SAMPLE[16:], "in the middle of a type"),
            (SAMPLE[:12] + words_of(12) + SAMPLE[16:], "in the middle of a type"),
            (SAMPLE[: HEADER + 4] + words_of(0) + SAMPLE[HEADER + 8 :], "kind 0, which"),
            (SAMPLE[: HEADER + 4] + words_of(UNKNOWN << 24) + SAMPLE[HEADER + 8 :], "kind 85, which"),
        ],
    )
    def test_the_file(self, data: bytes, said: str) -> None:
        with pytest.raises(GrammarError, match=said):
            read_prototypes(data, ["f"])

    @pytest.mark.parametrize(
        ("kind", "value", "said"),
        [
            (PTR, 1, "leads to itself"),
            (TYPEDEF, 1, "leads to itself"),
            (CONST, 1, "leads to itself"),
            (FUNC_PROTO, 1, "leads to itself"),
            (PTR, 99, "no type 99"),
            (TYPEDEF, 0xFFFFFFFF, "no type 4294967295"),
            (FUNC, 1, "of kind 12"),
            (DATASEC, 1, "of kind 15"),
        ],
    )
    def test_a_type(self, kind: int, value: int, said: str) -> None:
        blob = Blob()
        blob.add(kind, "x" if kind == TYPEDEF else "", value)
        blob.function("f", 1)
        with pytest.raises(GrammarError, match=said):
            read_prototypes(blob.data(), ["f"])

    def test_a_function_that_has_no_prototype(self) -> None:
        blob = Blob()
        blob.add(FUNC, "f", blob.int_("int", 32))
        with pytest.raises(
            GrammarError, match="the function f leads to a type of kind 1, which is not a prototype"
        ):
            read_prototypes(blob.data(), ["f"])

    def test_names(self) -> None:
        blob = Blob()
        blob.add(TYPEDEF, 1 << 20, 0)
        blob.add(TYPEDEF, "x" * 5000, 0)
        blob.function("f", 1)
        blob.function("g", 2)
        with pytest.raises(GrammarError, match="no string 1048576"):
            read_prototypes(blob.data(), ["f"])
        with pytest.raises(GrammarError, match="too long"):
            read_prototypes(blob.data(), ["g"])

    def test_what_would_grow_without_end(self) -> None:
        """Each prototype refers to the next one twice, which would be 2**30 names to write."""
        blob = Blob()
        number = 0
        for _ in range(30):
            number = blob.proto(number, ("a", number), ("b", number))
        blob.function("f", 0, ("a", blob.to(number)))
        with pytest.raises(GrammarError, match="too many types"):
            read_prototypes(blob.data(), ["f"])

    def test_more_parameters_than_any_function_has(self) -> None:
        blob = Blob()
        blob.function("f", 0, *[("", 0)] * 60_000)
        with pytest.raises(GrammarError, match="too many types"):
            read_prototypes(blob.data(), ["f"])

    def test_cut_off(self) -> None:
        for length in range(len(SAMPLE)):
            with pytest.raises(GrammarError):
                read_prototypes(SAMPLE[:length], ["f", "g"])

    @given(
        changes=st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), max_size=8),
        base=st.booleans(),
    )
    def test_bytes_that_were_changed(self, changes: list[tuple[int, int]], base: bool) -> None:
        data = bytearray(SAMPLE)
        for at, byte in changes:
            data[at] = byte
        self.assert_read_or_refused(bytes(data), SAMPLE if base else None)
        self.assert_read_or_refused(SAMPLE, bytes(data))

    @given(
        words=st.lists(st.integers(0, 24) | st.integers(0, 2**32 - 1) | INFOS, max_size=40),
        strings=st.binary(),
    )
    def test_any_words_as_types(self, words: list[int], strings: bytes) -> None:
        blob = Blob()
        blob.types, blob.strings = words_of(*words), b"\0f\0g\0" + strings + b"\0"
        self.assert_read_or_refused(blob.data())

    @given(data=st.binary(max_size=200))
    def test_any_bytes(self, data: bytes) -> None:
        self.assert_read_or_refused(data)

    @staticmethod
    def assert_read_or_refused(data: bytes, base: bytes | None = None) -> None:
        said = "the kernel's BTF cannot be read: "
        try:
            assert set(read_prototypes(data, ["f", "g"], base)) <= {"f", "g"}
        except GrammarError as error:
            said = str(error)
        assert re.fullmatch(r"the kernel's BTF cannot be read: [^\n]*", said)

    def test_time(self) -> None:
        """A file as large as a kernel's, with random references, takes less than 2 s of CPU time."""
        random = Random(1)
        blob = Blob()
        kinds = (PTR, CONST, TYPEDEF, FUNC_PROTO, FUNC, ARRAY)
        name, types = blob.string("f"), []
        for _ in range(100_000):
            kind = random.choice(kinds)
            vlen = random.randrange(4) if kind == FUNC_PROTO else 0
            extra = [random.randrange(100_000) for _ in range(2 * vlen + 3 * (kind == ARRAY))]
            extra[: 2 * vlen : 2] = [name] * vlen
            types.append(words_of(name, kind << 24 | vlen, random.randrange(100_000), *extra))
        blob.types = b"".join(types)
        before = time.process_time()
        self.assert_read_or_refused(blob.data())
        assert time.process_time() - before < 2


class TestNewerForms:
    """A type of an unknown kind can be skipped where the file gives the kind's length."""

    def test_with_a_layout(self) -> None:
        layout = [(0, 0)] * UNKNOWN + [(4, 8)]
        assert read_prototypes(with_an_unknown_type().data(layout=layout), ["f"])["f"].returns.name == "int"

    @pytest.mark.parametrize("layout", [[], [(0, 0)] * UNKNOWN, [(0, 0)] * UNKNOWN + [(5, 8)]])
    def test_without(self, layout: list[tuple[int, int]]) -> None:
        with pytest.raises(GrammarError, match="it has types of kind 85, which are not known here"):
            read_prototypes(with_an_unknown_type().data(layout=layout), ["f"])

    def test_what_is_known_is_not_asked_for(self) -> None:
        assert set(read_prototypes(sample().data(layout=[(8, 8)] * 20), ["f", "g"])) == {"f", "g"}

    def test_a_layout_that_is_not_there(self) -> None:
        data = with_an_unknown_type().data(layout=[(0, 0)])
        with pytest.raises(GrammarError, match="shorter than its header says"):
            read_prototypes(data[:28] + words_of(1 << 30) + data[32:], ["f"])


class TestKernelTypes:
    class Files(dict[str, bytes]):
        """The files of /sys/kernel/btf, and the list of those that were read."""

        def __init__(self, **files: bytes) -> None:
            super().__init__(files)
            self.asked: list[str] = []

        def read(self, name: str) -> bytes:
            self.asked.append(name)
            if name not in self:
                raise FileNotFoundError(name)
            return self[name]

    def test_it_reads_once(self) -> None:
        files = self.Files(vmlinux=SAMPLE)
        btf = KernelTypes(files.read)
        assert set(btf.prototypes(["f", "absent"])) == {"f"}
        assert set(btf.prototypes(["absent", "f"])) == {"f"}
        assert btf.prototypes([]) == {}
        assert set(btf.prototypes(["f", "g"])) == {"f", "g"}
        assert files.asked == ["vmlinux"]

    def test_a_module(self) -> None:
        module = Blob(sample())
        module.function("f", 0)
        files = self.Files(vmlinux=SAMPLE)
        btf = KernelTypes(files.read)
        assert btf.prototypes(["f"], "loaded_later") == {}
        files["loaded_later"] = module.data()
        assert btf.prototypes(["f"], "loaded_later")["f"].returns.name == "void"
        assert btf.prototypes(["f"])["f"].returns.name == "int"

    def test_a_kernel_without(self) -> None:
        assert KernelTypes(self.Files().read).prototypes(["f"]) == {}

    def test_damaged(self) -> None:
        with pytest.raises(GrammarError, match="cannot be read"):
            KernelTypes(self.Files(vmlinux=SAMPLE[:-1]).read).prototypes(["f"])


def test_many_names_are_found_as_few_are() -> None:
    """Many names are looked up in another way than a few, with the same results."""
    data = Path("/sys/kernel/btf/vmlinux")
    if not data.exists():
        pytest.skip("needs BTF")
    vmlinux = data.read_bytes()
    few = ["vfs_read", "do_sys_openat2", "no_such_function"]
    many = [*few, *(f"no_such_function_{number}" for number in range(MANY))]
    assert read_prototypes(vmlinux, many) == read_prototypes(vmlinux, few)
    assert "vfs_read" in read_prototypes(vmlinux, few)
