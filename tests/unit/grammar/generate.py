"""Random definitions and filters from a `random.Random`, for fuzzing the parsers and a real kernel.

The names are ones that a kernel knows (vfs_read, jiffies), so it refuses a definition only for its
grammar. About half of the definitions contain a mistake.
"""

import string
from random import Random

REGISTERS = ("%di", "%si", "%dx", "%ax", "%sp", "%r9")
PLACES = ("vfs_read", "vfs_read+0", "vfs_read%return")
MEMBERS = ("count", "file", "file->f_pos", "file->f_path.dentry->d_flags")
NUMBERS = (*("0", "1", "8", "0x10", "64", "010", "255") * 4, "2049", f"{2**64}", "x", "")
TYPES = [f"{sign}{bits}" for sign in "usx" for bits in (8, 16, 32, 64)] * 2
TYPES += ["string", "ustring", "symbol", "symstr", "char", "b1@0/8", "b4@30/32", "b12@3/16"]
TYPES += ["%pd", "%pD", "u128", ""]


def definition(random: Random) -> str:
    """Return a definition of an entry or a return of vfs_read."""
    letter = random.choice("pr")
    head = letter + (random.choice(("", "", "1", "64", "4097")) if letter == "r" else "")
    head += random.choice((*("", ":ev", ":grp/ev", ":grp/", ":g-1/ev", ":" + "e" * 63) * 4, ":9/e"))
    place = random.choice((*PLACES * 4, "vfs_read-4", "vfs_read+1"))
    arguments = [argument(random, name) for name in "abcdef"[: random.randrange(5)]]
    return spoil(random, " ".join([head, place, *arguments]), f"{head} {place}")


def argument(random: Random, name: str) -> str:
    """Return one argument, mostly with that name."""
    named = random.choice((*(f"{name}=",) * 20, "", "", "", "arg2=", "common_pid=", "9="))
    if random.random() < 0.1:
        return named + random.choice(MEMBERS) + random.choice(("", ":u8", ":x64", ":s32", ":string"))
    kind = f":{random.choice(TYPES)}" if random.random() < 0.5 else ""
    array = random.choice((*("",) * 20, "[1]", "[4]", "[64]", "[65]")) if kind else ""
    return named + expression(random) + kind + array


def expression(random: Random, depth: int = 0) -> str:
    """Return what an argument fetches."""
    if depth < 4 and random.random() < 0.4:
        sign, user = random.choice("+-"), random.choice(("", "", "u"))
        return f"{sign}{user}{random.choice(NUMBERS)}({expression(random, depth + 1)})"
    number = random.choice(NUMBERS)
    rare = (f"$arg{number}", f"$stack{number}", f"@jiffies+{number}", f"\\{number}", '\\"text"')
    common = (*REGISTERS, "$stack0", "$arg1", "@jiffies", "@0xffffffff81000000", "\\-5")
    return random.choice((*common * 2, *rare, "$comm", "$stack", "$retval", "$retval"))


def spoil(random: Random, text: str, keep: str = "") -> str:
    """Sometimes drop, double or change one character after `keep`."""
    if len(text) <= len(keep) + 1 or random.random() < 0.85:
        return text
    at = random.randrange(len(keep) + 1, len(text))
    instead = random.choice(("", text[at] * 2, random.choice(string.punctuation + "0aZ ")))
    return text[:at] + instead + text[at + 1 :]


STRINGS = ("text", "comm", "COMM")
FIELDS = [f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64)]
FIELDS += ["x32", "bits", "cpu", "common_cpu", "common_pid", "text", "comm", *STRINGS]
WORDS = ("", "a", "ab", "abc", "abcabc", "b", "a*c", "[x]", "1ab", "x-y", "a]c", "kprobe")
NEAR = {(1 << bits) + near for bits in (0, 7, 8, 15, 16, 31, 32, 63) for near in (-1, 0, 1)}
LIMITS = [*sorted(NEAR), *sorted(-number for number in NEAR if number <= 2**63)]


def filter_text(random: Random, depth: int = 0) -> str:
    """Return a filter over FIELDS. Its grammar is right, but a kernel may refuse a type or a value in it."""
    choice = random.random()
    if depth < 4 and choice < 0.5:
        parts = [filter_text(random, depth + 1) for _ in range(random.choice((2, 2, 3)))]
        blank = random.choice((" ", "", "  "))
        joined = f"{blank}{random.choice(('&&', '||'))}{blank}".join(parts)
        return f"({joined})" if random.random() < 0.6 else joined
    if choice < 0.65:
        inner = filter_text(random, depth + 1)
        return random.choice(("!", "! ", "!!")) + (inner if random.random() < 0.5 else f"({inner})")
    name = random.choice(FIELDS)
    if (name in STRINGS) == (random.random() < 0.97):
        return f"{name} {random.choice(('==', '!=', '~', '~', '~'))} {_quoted(random)}"
    sign = random.choice(("==", "!=", "<", "<=", ">", ">=", "&"))
    value = random.choice(LIMITS)
    number = random.choice((str(value), hex(value), str(abs(value)), str(random.randrange(8))))
    return f"{name}{random.choice((' ', ''))}{sign}{random.choice((' ', ''))}{number}"


def _quoted(random: Random) -> str:
    pattern = random.choice(WORDS)
    if random.random() < 0.6:
        extra = random.choice(("*", "*", "?", "[a-c]", "[!a]", "[", "\\", "!", "]"))
        at = random.choice((0, len(pattern), random.randrange(len(pattern) + 1)))
        pattern = pattern[:at] + extra + pattern[at:]
    if random.random() < 0.3:
        pattern = f"*{pattern}*"[random.randrange(2) :]
    quote = random.choice("\"'")
    return f"{quote}{pattern}{quote}"
