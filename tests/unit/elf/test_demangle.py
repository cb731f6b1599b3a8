"""elf.demangle: names of C++ are those of c++filt; a hostile name costs little."""

import shutil
import subprocess
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.elf import locate, matching_functions
from kprobe_exporter.elf.demangle import (
    MAX_NAME,
    MAX_PRINTED,
    copied_words,
    demangled,
    function_name,
    is_bounded,
    is_instance,
    is_same,
    short_name,
    worst_size,
)
from kprobe_exporter.elf.find import functions
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.util.rooted_path import ProbedFiles

pytest.importorskip("pycxxfilt")

SOURCE = """
#include <cstdlib>
#include <string>
namespace app {
template <class T> struct Box { T v; T get(int n) { return v; } };
template <class... T> int all(T... x) { return (x + ...); }
struct Foo {
    int x;
    Foo(int y);
    ~Foo();
    int bar(int n);
    int bar(const std::string &s) const;
    bool operator<(const Foo &o) const;
    operator bool() const;
    static void *operator new(size_t size);
};
Foo::Foo(int y) : x(y) {}
int Foo::bar(int n) { return x + n; }
int Foo::bar(const std::string &s) const { return (int)s.size(); }
bool Foo::operator<(const Foo &o) const { return x < o.x; }
Foo::operator bool() const { return x; }
void *Foo::operator new(size_t size) { return malloc(size); }
Foo::~Foo() {}
namespace { __attribute__((noinline)) int hidden(int n) { return n; } }
int use(int n) { auto twice = [n](int m) { return hidden(n * m); }; return twice(2) + all(1, 2L, 'c'); }
template struct Box<int>;
template struct Box<Box<long>>;
template <class T> int sum(T a) { return a; }
template <class T> int sum(T a, T b) { return a + b; }
template int sum<int>(int);
template int sum<int>(int, int);
template int sum<long>(long);
}
int main() { return app::use(1); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    made = tmp_path_factory.mktemp("cpp") / "program"
    subprocess.run([compiler, "-O0", "-x", "c++", "-", "-o", made], input=SOURCE.encode(), check=True)
    return made


def symbols(program: Path, *options: str) -> dict[str, int]:
    listed = subprocess.run(["nm", *options, program], capture_output=True, text=True, check=True).stdout
    rows = [line.split(" ", 2) for line in listed.splitlines()]
    return {row[2]: int(row[0], 16) for row in rows if len(row) == 3 and row[0] and row[1] in "tTwW"}


def test_names_of_the_program(program: Path) -> None:
    theirs = symbols(program, "-C")
    ours = {demangled(name): value for name, value in symbols(program).items() if name.startswith("_Z")}
    ours.pop(None, None)
    assert len(ours) >= 12
    # LLVM names lambdas by another rule.
    both = {name: value for name, value in ours.items() if name and "lambda" not in name}
    of_gnu = {name.replace("> >", ">>").replace("> >", ">>"): value for name, value in theirs.items()}
    assert {name: value for name, value in both.items() if of_gnu.get(name) != value} == {}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("app::Foo::bar(int)", "app::Foo::bar(int)"),
        ("app::Foo::~Foo", "app::Foo::~Foo()"),
        ("app::Foo::Foo", "app::Foo::Foo(int)"),
        ("app::Foo::operator<", "app::Foo::operator<(app::Foo const&) const"),
        ("app::Foo::operator bool", "app::Foo::operator bool() const"),
        ("app::Foo::operator new", "app::Foo::operator new(unsigned long)"),
        ("app::(anonymous namespace)::hidden", "app::(anonymous namespace)::hidden(int)"),
        ("app::Box<int>::get", "app::Box<int>::get(int)"),
        ("app::use", "app::use(int)"),
        ("app::all<int, long, char>", "int app::all<int, long, char>(int, long, char)"),
        ("app::use+4", "app::use(int)"),
    ],
)
def test_probe_by_name(program: Path, name: str, full: str) -> None:
    value = symbols(program, "-C")[full] + (4 if name.endswith("+4") else 0)
    target = parse_target(f"uprobe:{program}:{name}")
    assert str(target) == f"uprobe:{program}:{name}"
    assert locate(target).offset == value  # the code of a position-independent program is at its offset


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("app::Box<*>::get", ["app::Box<app::Box<long>>::get", "app::Box<int>::get"]),
        ("app::Box<*>::get(int)", ["app::Box<app::Box<long>>::get", "app::Box<int>::get"]),
        ("app::all<*>", ["app::all<int, long, char>"]),
        (
            "app::sum<*>",
            ["app::sum<long>", "int app::sum<int>(int)", "int app::sum<int>(int, int)"],
        ),
    ],
)
def test_instances(program: Path, pattern: str, names: list[str]) -> None:
    """Each is a name that stands for one function."""
    target = parse_target(f"uprobe:{program}:{pattern}")
    assert target.is_pattern
    found = matching_functions(target, 3)
    assert [one.symbol for one in found] == names
    assert len({locate(parse_target(str(one))).offset for one in found}) == len(names)


def test_instances_refused(program: Path) -> None:
    sums = parse_target(f"uprobe:{program}:app::sum<*>")
    with pytest.raises(GrammarError, match="names 3 functions, more than max_matches 2: narrow it"):
        matching_functions(sums, 2)
    with pytest.raises(GrammarError, match=r"'uprobe:.*:app::Foo<\*>' matches no function of C\+\+ or Rust"):
        matching_functions(parse_target(f"uprobe:{program}:app::Foo<*>"), 9)
    with pytest.raises(GrammarError, match="a pattern has no offset"):
        parse_target(f"uprobe:{program}:app::Box<*>::get+4")


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("A<*>::f", "A<B<int>, (C)1>::f(int)", True),
        ("A<*>::f", "A<(1 > 2)>::f()", True),
        ("A<*>::f", "A<int>::g()", False),
        ("A<*>::f", "A<int>::B<int>::f()", False),
        ("A<*>::B<*>::f", "A<int>::B<int>::f()", True),
        ("A<*>", "A<int>::f()", False),
        ("A<*>", "A", False),
        ("A<*>", "A<", False),
        ("operator<<*>", "bool operator<<int>(A, int)", True),
        ("f<*>", "void f<A<&(B::operator->())> >(A<&(B::operator->())>)", True),
    ],
)
def test_instance_of_a_pattern(pattern: str, text: str, matches: bool) -> None:
    assert is_instance(pattern, text) is matches


@given(st.text("AB<>*():- ", max_size=12), st.text("AB<>():- ", max_size=12))
def test_any_pattern(pattern: str, text: str) -> None:
    """Without template arguments a pattern is a name."""
    if "<*>" not in pattern and "> >" not in pattern:
        assert is_instance(pattern, text) == is_same(pattern, text)
    assert is_instance(f"A<*>{pattern}", text) <= text.startswith("A<")


def test_several_and_none(program: Path) -> None:
    with pytest.raises(GrammarError, match=r"'app::Foo::bar' is 2 functions of .*, name one by its"):
        locate(parse_target(f"uprobe:{program}:app::Foo::bar"))
    with pytest.raises(GrammarError, match="has no function 'app::Foo::nope'"):
        locate(parse_target(f"uprobe:{program}:app::Foo::nope"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("app::Foo::bar(int) const &", "app::Foo::bar"),
        ("int app::all<int, char>(int, char)", "app::all<int, char>"),
        ("(anonymous namespace)::g()", "(anonymous namespace)::g"),
        ("main::'lambda'()::operator()() const", "main::'lambda'()::operator()"),
        ("A::operator->() const", "A::operator->"),
        ("A::operator unsigned long()", "A::operator unsigned long"),
        ("bool operator<<<int>(A, int)", "operator<<<int>"),
        ("f(void (*)(int))", "f"),
        ("foo::bar() (.isra.0)", "foo::bar"),
        ("<alloc::Vec<T> as core::fmt::Debug>::fmt", "<alloc::Vec<T> as core::fmt::Debug>::fmt"),
        ("", ""),
        (")", ")"),
    ],
)
def test_function_name(text: str, name: str) -> None:
    assert function_name(text) == name


@given(st.text("ab:<>()- &*,", max_size=40))
def test_function_name_of_any_text(text: str) -> None:
    assert function_name(text) in text


def test_rust() -> None:
    assert demangled("_RNvC6_123foo3bar") == "123foo::bar"
    assert demangled("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE") == "core::fmt::Formatter::pad"
    escaped = "_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$core..fmt..Debug$GT$"
    mangled = f"_ZN{len(escaped)}{escaped}3fmt17h0123456789abcdefE"
    assert demangled(mangled) == "<alloc::vec::Vec<T> as core::fmt::Debug>::fmt"


def test_name_for_a_stack() -> None:
    mangled = "_ZNSt8_Rb_treeIiSt4pairIKiiESt10_Select1stIS2_ESt4lessIiESaIS2_EE8_M_eraseEPv"
    assert short_name(mangled, 64) == "std::_Rb_tree<…>::_M_erase"
    assert short_name("_ZN3app3FooltERKS0_", 64) == "app::Foo::operator<"
    assert short_name("main", 64) == "main"


def test_spelling_of_gnu() -> None:
    assert is_same("f(A<B<int> > const&)", "f(A<B<int>> const&)")


def doubling(levels: int) -> str:
    """A name whose text has 2 ** levels parts: each template has the one before as both arguments."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    inner = "1aIiE"
    for level in range(levels):  # the templates' names are the first substitutions, then `a` and `a<int>`
        number = levels + level
        before = digits[number] if number < 36 else digits[number // 36] + digits[number % 36]
        inner = f"1bI{inner}S{before}_E"
    return f"_Z1f{inner}"


def test_doubling_doubles() -> None:
    lengths = [len(demangled(doubling(levels)) or "") for levels in range(1, 12)]
    assert all(after > 1.8 * before for before, after in pairwise(lengths))


HOSTILE = [
    *(doubling(levels) for levels in range(1, 36)),
    "_Z1f" + "P" * MAX_NAME,
    "_Z1f" + "P" * (MAX_NAME - 10) + "i",
    "_Z1fI" + "J" * 900 + "E" * 900 + "Evv",
    "_Z1fIJ" + "i" * 60 + "EEv" + "DpP" * 30 + "T_",
    "_Z1f" + "N" * 1900,
    "_R" + "N" * 1900,
    "_RNvC1a" + "M" * 1900,
    "_Z" + "9" * 1900,
    "_Z1f" + "F" * 1900,
    "_Z1fDT" + "cl" * 900,
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_name_bounded(name: str) -> None:
    began = time.thread_time()
    text = demangled(name)
    assert time.thread_time() - began < 1
    assert len(text or "") <= MAX_PRINTED
    if len(name) > MAX_NAME:
        assert not is_bounded(name)


@given(st.text("IJES_T0DpsPKRN1afibvZLXxy", max_size=300))
def test_drawn_names_bounded(tail: str) -> None:
    name = f"_Z1f{tail}"
    assert len(demangled(name) or "") <= MAX_PRINTED
    if is_bounded(name):
        assert worst_size(name) <= MAX_PRINTED


def test_symbols_have_the_words_of_their_names(program: Path) -> None:
    """So a search reads only the symbols that have the words of its pattern."""
    library = subprocess.check_output(["gcc", "-print-file-name=libstdc++.so.6"], text=True).strip()
    with closing(ProbedFiles()) as files:
        known = [*functions(library, files), *functions(str(program), files)]
    written = {symbol: text for symbol in known if (text := demangled(symbol)) is not None}
    assert len(written) > 1000
    missing = [(symbol, text) for symbol, text in written.items() if not has_words(symbol, text)]
    assert missing == []


def has_words(symbol: str, pattern: str) -> bool:
    return all(word in symbol for word in copied_words(pattern))


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("*::parse*Header?", ["parse", "Header"]),
        ("app::Box<*>::get_all", ["get_all"]),
        ("*[abc]defgh[!]ijkl]mnop[qrst", ["defgh", "mnop"]),
        ("std::vector<*>::basic_str*", ["vector"]),  # `Ss` is a name with basic_string
        ("lambda3 0x7fffffff x7fffffff 12345ull", []),
    ],
)
def test_words_of_a_pattern(pattern: str, words: list[str]) -> None:
    assert copied_words(pattern) == words
