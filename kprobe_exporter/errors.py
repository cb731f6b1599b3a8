"""Every exception that this package raises on purpose; each message is one sentence for the user.

KprobeExporterError
├── GrammarError          a text in the kernel's or our own grammar is wrong; points at a column
├── ConfigError           one or more problems of a configuration, all at once
│     (holds Problem values)
├── TracefsError          the kernel refused, or tracefs is not there
│   ├── NotMounted        no tracefs, and none could be mounted
│   ├── ProbeRefused      one definition, filter or enable was refused
│   ├── InstanceBusy      another live agent holds the instance
│   └── RemovalStopped    events stay in the kernel, as was requested
├── SourceError           the event reader cannot go on
├── SessionRefused        the agent refuses a session, or there is no agent to ask
└── StartError            the agent cannot start (address in use, nothing to serve, …)
    └── UsageError        a value on the command line can never work
"""

import re
from typing import NamedTuple

# Characters that Python takes for printable, and that nevertheless show nothing: fillers, blank patterns and
# variation selectors (Default_Ignorable_Code_Point of Unicode, and U+2800).
_INVISIBLE = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159"
    "\U000e0100-\U000e01ef"
)
_HIDDEN = re.compile(f"[{_INVISIBLE}]")

# What name_text() writes for a character, so that a name in which it stands as such has to be told apart.
_WRITTEN = r"[nrt]|x(?:[018-9a-f][0-9a-f]|5c|7f)|u[0-9a-f]{4}|U[0-9a-f]{8}"
_BACKSLASH = re.compile(rf"\\(?={_WRITTEN})")


def one_line(text: str) -> str:
    """Keep the text on one line: escape characters that do not show, which names may hold, as ``\\xNN``."""
    if text.isprintable() and (text.isascii() or not _HIDDEN.search(text)):
        return text
    return "".join(
        c.encode("unicode_escape", "surrogatepass").decode() if not c.isprintable() or _HIDDEN.match(c) else c
        for c in text
    )


def sentence(text: str) -> str:
    """End a clause with a full stop, unless it ends as a sentence already."""
    return text if text.endswith((".", "?")) else f"{text}."


def counted(number: int, noun: str) -> str:
    """Return the number and the noun, in the plural unless it is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def name_text(name: bytes) -> str:
    """Return a name as text on one line. Different names become different texts.

    A byte that is not UTF-8 becomes ``\\xNN``. A character that does not show becomes ``\\n`` or ``\\xNN``,
    from 128 on ``\\uNNNN`` or ``\\UNNNNNNNN``. A backslash before such a sequence becomes ``\\x5c``, so
    apply this to a name once.
    """
    text = name.decode(errors="surrogateescape")
    if "\\" in text:
        text = _BACKSLASH.sub(r"\\x5c", text)
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    if "\x80" <= char <= "\xff" and not char.isprintable():
        return f"\\u{ord(char):04x}"
    return one_line(char)


class KprobeExporterError(Exception):
    """Base of all errors that a user can fix; ``str()`` is one clear sentence."""


class GrammarError(KprobeExporterError):
    """A text does not follow its grammar.

    ``column`` counts characters of ``text`` from 0.
    """

    def __init__(self, message: str, text: str = "", column: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.text = text
        self.column = column


class Problem(NamedTuple):
    """One mistake of a configuration. ``line`` and ``column`` count from 1, as editors do."""

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        return one_line(f"{self.file}:{self.line}:{self.column}: {self.path}: {self.message}")


class ConfigError(KprobeExporterError):
    """A configuration that cannot be used, with every problem found in it."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)))


class TracefsError(KprobeExporterError):
    """The kernel refused something, or tracefs cannot be used."""


class NotMounted(TracefsError):
    """Tracefs is missing, and could not be mounted."""


class ProbeRefused(TracefsError):
    """The kernel refused one probe; the other probes are not affected."""


class InstanceBusy(TracefsError):
    """Another live agent holds the tracefs instance."""


class RemovalStopped(TracefsError):
    """A removal of many events was given up on request; ``done`` says how far it was."""

    def __init__(self, done: str) -> None:
        super().__init__(
            f"the removal was stopped while {done}: "
            "'kprobe-exporter cleanup' or the next start removes the rest."
        )


class SourceError(KprobeExporterError):
    """The event reader cannot go on."""


class SessionRefused(KprobeExporterError):
    """An agent does not run the tools that a client asked for."""


class StartError(KprobeExporterError):
    """The agent cannot start for a reason outside the kernel."""


class UsageError(StartError):
    """A value on the command line that can never work."""
