"""The commands that the README and three documents show, and which of these commands tests run.

A test gets its commands by `reads`, which counts them as run. tests/unit/test_documents.py fails for a
command that no test takes.
"""

import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path

from kprobe_exporter.cli import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
OTHERS = ("docs/command-line.md", "docs/operating.md", "docs/collecting.md")
SHOWN = "\n".join([README, *((ROOT / name).read_text() for name in OTHERS)])
"""The README and the documents whose commands and blocks tests take as they take the README's."""


_FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:[^`\n]|\n(?!\n))+)`")
_IN_TABLE = re.compile(rf"^\| `((?:{'|'.join(COMMANDS)})(?: [^`]+)?)` \|", re.MULTILINE)
_PROGRAMS = (
    "apt apt-get buildah cd curl docker echo for GET git helm journalctl kill kprobe-exporter kubectl make"
    " pip pipx podman POST promtool python3? sh bash source sudo systemctl wget"
)
_COMMAND = rf"(?:[\w./-]+/)?(?:{'|'.join(_PROGRAMS.split())}) \S.*"
_DIRECTORY = re.compile(r"^[\w./-]+/")
_IN_COMMENT = re.compile(rf"(?:^|: )({_COMMAND})$")

STARTS: list[str] = []
"""The beginnings of the commands that tests take."""


def blocks(text: str = SHOWN) -> list[str]:
    """Return the contents of all fenced blocks."""
    return _FENCED.findall(text)


def block(word: str, text: str = SHOWN) -> str:
    """Return the one fenced block that contains a word. Raises LookupError unless exactly one does."""
    return _only(word, [block for block in blocks(text) if word in block])


def commands(text: str | None = None) -> list[str]:
    """Each command once: the lines of fenced blocks, joined, and their comments; the table; inline code.

    A block that begins with a command holds only commands. In other blocks the program identifies a command.
    """
    text = SHOWN if text is None else text
    found: list[str] = []
    for fenced in blocks(text):
        lines = re.sub(r"\s*\\\n\s*", " ", fenced).splitlines()
        all_are = re.match(_COMMAND, lines[0])
        for line in lines:
            code, _, comment = re.sub(r"(^|\s+)# ", "\0", line, count=1).partition("\0")
            found += [code] if code and all_are else re.findall(rf"^(?:\$ )?({_COMMAND})$", code)
            found += _IN_COMMENT.findall(comment)
    outside = _FENCED.sub("", text)
    found += [f"kprobe-exporter {code}" for code in _IN_TABLE.findall(outside)]
    inline = [" ".join(code.split()) for code in _INLINE.findall(outside)]
    found += [code for code in inline if re.fullmatch(_COMMAND, code)]
    return list(dict.fromkeys(found))


def command(start: str) -> str:
    """The one command that equals this text or else begins with it; the program's directory is ignored.

    Raises LookupError if there is none, or if there are several.
    """
    programs = {line: _DIRECTORY.sub("", line) for line in commands()}
    found = [line for line, program in programs.items() if program == start]
    return _only(start, found or [line for line, program in programs.items() if program.startswith(start)])


def reads(**starts: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a test arguments: each is the one command shown that begins so, and counts as run."""
    STARTS.extend(starts.values())

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def reading(**fixtures: object) -> None:
            test(**fixtures, **{name: command(start) for name, start in starts.items()})

        signature = inspect.signature(test)
        others = [it for name, it in signature.parameters.items() if name not in starts]
        vars(reading)["__signature__"] = signature.replace(parameters=others)
        return reading

    return decorate


def _only(what: str, found: list[str]) -> str:
    if len(found) != 1:
        raise LookupError(f"a test runs {what!r}, which the documents show {len(found)} times, not once")
    return found[0]
