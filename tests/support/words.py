"""Rules of English for documents, docstrings and messages, and the places that break them.

The rules are those that a pattern can hold: a sentence has at most 25 words, and begins with its subject.
Code, tables and headings of a document are not read.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from pathlib import Path

MAX_WORDS = 25

START = r"(?:^|(?<=[.!?:] ))"
RULES: Mapping[str, re.Pattern[str]] = {
    "'is not a', never 'is no'": re.compile(
        r"(?<!there )\b(?:is|are|was|were|be) no (?!longer\b|more than\b)[a-z]"
    ),
    "name who it is": re.compile(r"\b(?:nobody|somebody|anybody|whoever|whatever)\b", re.IGNORECASE),
    "begin with the subject": re.compile(rf"{START}(?:Of|Beside|Behind|With|Without) [^.:]*?, "),
    "a noun, not a clause": re.compile(rf"{START}(?:What|Who|Where) (?![^.]*\?)"),
    "besides, or next to": re.compile(r"\bbeside that\b", re.IGNORECASE),
    "about, never some": re.compile(r"\bsome \d"),
    "omit, or skip": re.compile(r"\b(?:leaves?|leaving|left) out\b"),
    "report, or count": re.compile(r"\btold as\b"),
}


def broken(text: str) -> Iterator[str]:
    """Yield a line for each rule that a text breaks, and where."""
    for sentence in re.split(r"(?<=[.!?:;]) |\n", text):
        if (words := len(sentence.split())) > MAX_WORDS:
            yield f"{words} words: {sentence[:60]}"
    for rule, pattern in RULES.items():
        yield from (
            f"{rule}: {text[max(0, it.start() - 20) : it.end() + 30]}" for it in pattern.finditer(text)
        )


def prose(path: Path) -> Iterator[str]:
    """Yield the paragraphs of a document, or a module's docstrings, texts below names, and messages."""
    return _documents(path.read_text()) if path.suffix == ".md" else _modules(path.read_text())


def _documents(text: str) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        if not paragraph.lstrip().startswith(("|", "#", "![")):
            yield _plain(re.sub(r"\]\([^)]*\)", "]", paragraph))


def _modules(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(it.value) if isinstance(it, ast.Constant) else "N" for it in node.values)
            yield from [] if text.startswith("<svg") else [_plain(text)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 3:
            paragraphs = re.split(r"\n\s*\n|\n(?=\s*[-*] )", cleandoc(node.value))
            yield from (_plain(text) for text in paragraphs if _is_prose(text))


def _is_prose(paragraph: str) -> bool:
    """Return False for a list of words, for click's marked examples, and for lines of a program."""
    return bool(re.search(r"[.,:;](?:\s|$)", paragraph)) and not re.search(
        r"\x08|^    |[{};] *$", paragraph, re.M
    )


def _plain(paragraph: str) -> str:
    """Return a paragraph in one line, with code as one word."""
    return " ".join(re.sub(r"``.+?``|`[^`]+`", "CODE", paragraph, flags=re.DOTALL).split())
