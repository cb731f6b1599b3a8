"""Names of C++ and Rust functions as people write them, from the symbols that compilers make of them.

LLVM's demanglers (the package pycxxfilt, which is optional) read a name in linear time. The text that they
print may be exponentially longer: a back reference repeats a part of the name, and an expansion repeats its
pattern for each member of a pack. An unprivileged user may have written the program. So a name is demangled
only if its repetitions cannot make it long; others stay as they are.
"""

import re
from bisect import bisect_right
from functools import lru_cache

from kprobe_exporter.grammar.target import INSTANCES

try:
    from pycxxfilt import itanium_demangle, rust_demangle
except ImportError:  # names stay as compilers write them

    def itanium_demangle(mangled_name: str, /) -> str | None:
        return None

    rust_demangle = itanium_demangle


MAX_NAME = 2000
"""Characters of a symbol; each may be a level of recursion, of less than 1 KiB of stack."""

MAX_PRINTED = 1 << 22
"""Bytes to which a name may grow, at worst."""

_MANGLED = re.compile(r"_Z[\w.$]+|_R[A-Za-z][\w.$]*")
_REPEATED = re.compile(
    r"(?=S(?P<substitution>[0-9A-Z]*)_|T(?:L[0-9]*_)?[0-9]*_|(?<!^)B(?P<rust>[0-9A-Za-z]*)_)"
)
"""Substitutions and template parameters (https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling), and
back references of Rust (RFC 2603)."""

_EXPANDED = re.compile(r"Dp|s[pPZ]|f[lrLR]")
"""Expansions of packs."""

_CHARACTER = 16.0
"""Bytes to which a character grows, such as ``y``: unsigned long long; a part has some more for its end."""

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

_FORWARD = re.compile(r"cv.*T[L0-9_]*_")
"""A conversion operator, whose type may be a template parameter that follows it."""

_HASH = re.compile(r"::h[0-9a-f]{16}")
_HASH_SIZE = 19
"""The end of a Rust name in the form of C++, and its characters."""

_ESCAPES = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}
_ESCAPED = re.compile(r"\$(?:(SP|BP|RF|LT|GT|LP|RP|C)|u([0-9a-f]{1,6}))\$")

_OWN_WORDS = """
void wchar_t bool char signed unsigned short int long __int128 float double __float128 decimal char8_t
char16_t char32_t auto decltype nullptr_t std allocator basic_string string istream ostream iostream
basic_istream basic_ostream basic_iostream char_traits operator new delete co_await sizeof alignof typeid
throw noexcept vtable VTT typeinfo name construction covariant return thunk virtual non guard variable
reference temporary TLS init wrapper thread local initialization routine function for template parameter
object initializer module anonymous namespace lambda unnamed block literal invocation enable_if const
volatile restrict complex imaginary objcproto nullptr true false this requires typename typenames clone
default_arg static_cast dynamic_cast const_cast reinterpret_cast abi ull _Float16 _BitInt constinit
string_literal unsafe extern closure shim impl usize isize recursive
"""
"""Words that the demanglers write of their own (ItaniumDemangle.h, RustDemangle.cpp of LLVM)."""

_WORD = re.compile(r"(?<!\w)(?!x[0-9a-f]+\b)[A-Za-z_]\w{3,}", re.ASCII)
"""A word of a pattern, but not ``x7fff``, which may be the end of a number."""

_SUFFIX = re.compile(r"(?: const| volatile| &&?| \([\w.$]+\)| \[clone [^\]]*\])+$")
_OPENING, _CLOSING = "(<[{", ")>]}"


def is_mangled(symbol: str) -> bool:
    """Return whether a symbol may be that of a C++ or Rust function."""
    return symbol.startswith(("_Z", "_R"))


def demangle(symbol: str) -> str | None:
    """Return the name with its parameters, ``app::Foo::bar(int) const``; None for any other symbol."""
    if not is_mangled(symbol) or not is_bounded(symbol):
        return None
    try:
        found = rust_demangle(symbol) if symbol.startswith("_R") else itanium_demangle(symbol)
    except ValueError:
        return None
    if found is None:
        return None
    name, end = found[:-_HASH_SIZE], found[-_HASH_SIZE:]
    return _unescaped(name) if name and _HASH.fullmatch(end) else found


demangled = lru_cache(1 << 12)(demangle)
"""Does the same, and remembers the last names."""


def is_bounded(symbol: str) -> bool:
    """Return whether demangling takes bounded memory: a name with few references cannot grow long."""
    if len(symbol) > MAX_NAME or not _MANGLED.fullmatch(symbol) or _FORWARD.search(symbol):
        return False
    references = symbol.count("S") + symbol.count("T") + symbol.count("B")
    doubled = _CHARACTER * len(symbol) * 2.0**references
    return (doubled <= MAX_PRINTED and not _EXPANDED.search(symbol)) or worst_size(symbol) <= MAX_PRINTED


def worst_size(symbol: str) -> float:
    """Return the bytes to which a name may grow at worst; above MAX_PRINTED it may be any such number.

    A reference adds at most the text before it. A substitution adds what the first reference to it, or to a
    later one, could add: by then it was complete. A back reference of Rust names the place where its part
    begins. An expansion prints its pattern once for each member of a pack: there are fewer than characters.
    """
    complete: dict[int, float] = {}
    sizes, places = [0.0], [0]  # the size of the text before each reference
    grown = 0.0
    for found in _REPEATED.finditer(symbol):
        size = _CHARACTER * found.start() + grown
        places.append(found.start())
        sizes.append(size)
        if found["rust"] is not None:
            begin = _number(found["rust"], 62) + len("_R")
            grown += size - sizes[bisect_right(places, begin) - 1]
        elif found["substitution"] is not None:
            number = _number(found["substitution"].lower(), 36)
            known = [one for other, one in complete.items() if other >= number]
            complete[number] = min(known, default=size)
            grown += complete[number]
        else:
            grown += size
        if grown > MAX_PRINTED:
            return grown
    length = len(symbol)
    expansions: float = length ** len(_EXPANDED.findall(symbol))
    return (_CHARACTER * length + grown) * expansions


def _number(digits: str, base: int) -> int:
    """Return the number of a sequence id: none is 0, and ``0`` is 1."""
    value = 0
    for digit in digits:
        value = value * base + _DIGITS.index(digit)
    return value + 1 if digits else 0


def copied_words(pattern: str) -> list[str]:
    """Return words of a shell's pattern that each symbol has that matches it, also by its demangled name.

    Compilers copy names into symbols. Other words may be the demanglers' own, or parts of these.
    """
    plain = re.sub(r"\[!?\]?[^]]*\]?", "*", pattern)  # without sets of characters
    return [word for word in _WORD.findall(plain) if word.rstrip("0123456789") not in _OWN_WORDS]


def is_same(written: str, text: str) -> bool:
    """Return whether a name as a person writes it is a demangled one, with or without its parameters."""
    written = written.replace("> >", ">>").replace("> >", ">>")  # as GNU's c++filt has it
    return written in (text, function_name(text))


def is_instance(pattern: str, text: str) -> bool:
    """Return whether a demangled name is one of a pattern: INSTANCES is any template arguments."""
    first, *others = pattern.replace("> >", ">>").replace("> >", ">>").split(INSTANCES)
    for name in (function_name(text), text):
        end: int | None = len(first) if name.startswith(first) else None
        for piece in others:
            if end is not None and (end := _end_of_arguments(name, end)) is not None:
                end = end + len(piece) if name.startswith(piece, end) else None
        if end == len(name):
            return True
    return False


def _end_of_arguments(name: str, begin: int) -> int | None:
    """Return the place behind template arguments that begin here; None if none do."""
    depth = in_parentheses = 0
    for place in range(begin, len(name)):
        character = name[place]
        in_parentheses += (character == "(") - (character == ")")
        if not in_parentheses:
            depth += (character == "<") - (character == ">" and name[place - 1] != "-")
        if not depth:
            return place + 1 if place > begin else None
    return None


def function_name(text: str) -> str:
    """Return a demangled name without its parameters and, of a template, without the type that it returns."""
    text = _SUFFIX.sub("", text)
    if text.endswith(")"):
        text = text[: _opening(text)]
    begin = depth = 0
    for place, character in enumerate(text):
        if text.startswith("operator", place) and not depth:
            break  # what follows is the operator's name
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING and text[place - 1] != "-":
            depth -= 1
        elif character == " " and not depth:
            begin = place + 1
    return text[begin:] or text


def short_name(symbol: str, size: int) -> str:
    """Return a function's name for a stack; above ``size`` it has ``…`` in place of template arguments."""
    text = demangled(symbol)
    if text is None:
        return symbol
    name = function_name(text)
    return name if len(name) <= size else _without_arguments(name)


def _without_arguments(name: str) -> str:
    parts, depth = [], 0
    for place, character in enumerate(name):
        is_operator = name[:place].rstrip("<=>-").endswith("operator")
        if character == "<" and not is_operator:
            parts += [] if depth else ["<…>"]
            depth += 1
        elif character == ">" and depth and name[place - 1] != "-":
            depth -= 1
        elif not depth:
            parts.append(character)
    return "".join(parts)


def _opening(text: str) -> int:
    """Return where the last parenthesis of a text is opened."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if not depth:
            return place
    return len(text)


def _unescaped(name: str) -> str:
    """Undo the escapes of Rust's older names: ``$LT$T$u20$as$u20$fmt..Debug$GT$``."""

    def character(found: re.Match[str]) -> str:
        code = 0 if found[2] is None else int(found[2], 16)
        return _ESCAPES[found[1]] if found[1] else chr(code) if 31 < code < 0x110000 else found[0]

    parts = (part[1:] if part.startswith("_$") else part for part in name.split("::"))
    return _ESCAPED.sub(character, "::".join(parts).replace("..", "::"))
