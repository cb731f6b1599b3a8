"""Reads the web configuration file: gives the server's settings, or every problem in the file.

The format is the exporter-toolkit's (docs/web-configuration.md there); `promtool check web-config`
validates it. A key that is not supported here is refused. No message quotes a key, a certificate or a hash.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path as FilePath

from kprobe_exporter.config.files import Unusable, read
from kprobe_exporter.config.wording import listed
from kprobe_exporter.config.yaml_source import YamlSource
from kprobe_exporter.errors import ConfigError, Problem
from kprobe_exporter.util.file_access import all_may_read, open_regular
from kprobe_exporter.web.access import Rate, WebSettings
from kprobe_exporter.web.config.sections import TLS, Section, TlsSection

HTTP, USERS, RATE = "http_server_config", "basic_auth_users", "rate_limit"

# The values that the toolkit allows for these headers; None: any value.
_HEADERS: Mapping[str, tuple[str, ...] | None] = {
    "Content-Security-Policy": None,
    "Strict-Transport-Security": None,
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": None,
}
_HEADER_VALUE = re.compile(r"[ -~]{0,8192}")

_NO_HASH = (
    "must be a bcrypt hash of the password, as $2b$10$ and 53 letters more: make one with the agent's"
    " python3, -c 'import bcrypt; print(bcrypt.hashpw(input().encode(), bcrypt.gensalt(10)).decode())'"
)

# A hash is `$2y$` or the like, the rounds as a power of two, and a salt and a digest in bcrypt's base64.
_HASH = re.compile(r"\$2[abxy]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
MAX_USERS = 1000

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

SHORTEST_INTERVAL = 1e-6
"""Seconds; more requests than these never come. A plain number is in nanoseconds. So `1`, which remains of
`1s` in a file that was cut short, does not count as a limit either."""

HTTP2 = "http2 is not spoken here: clients that offer it settle on HTTP/1.1 by themselves"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of reading a file. ``settings`` is None if there are ``problems``.

    ``files`` are those that were read, or should have been; ``notes`` and ``warnings`` are for the log.
    ``unread``: one of them could not be read, so reading the unchanged files again may succeed.
    """

    settings: WebSettings | None
    files: tuple[FilePath, ...]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unread: bool = False


def read_web_config(path: FilePath) -> Outcome:
    """Read the file and the files that it names; relative paths in it start at its own directory."""
    try:
        content = read(path)
        source = YamlSource(str(path), b"{}" if _is_blank(content) else content)
    except Unusable as error:
        return Outcome(None, (path,), (Problem(str(path), 1, 1, "(file)", str(error)),), unread=True)
    except ConfigError as error:
        return Outcome(None, (path,), error.problems)
    problems = list(source.readable)
    section = partial(Section, source, problems)
    section((), (TLS, HTTP, USERS, RATE))  # refuses other sections
    tls, http = TlsSection(source, problems, path.parent), section((HTTP,), ("http2", "headers"))
    settings = WebSettings(
        tls.tls(),
        _users(section((USERS,), None)),
        _headers(section((HTTP, "headers"), _HEADERS)),
        _rate(section((RATE,), ("interval", "burst"))),
    )
    notes = (HTTP2,) if http.flag("http2", default=False) else ()
    warnings = tuple(dict.fromkeys(tls.warnings))  # one file may be both certificate and key
    if settings.users and _all_may_read(path):
        sentence = f"every user of this machine may read the hashes of passwords in {path}: chmod o-r it"
        warnings = (sentence, *warnings)
    valid = None if problems else settings
    return Outcome(valid, (path, *tls.files), tuple(sorted(problems)), notes, warnings, tls.unread)


def _all_may_read(path: FilePath) -> bool:
    try:
        with open_regular(path) as file:
            return all_may_read(file.fileno())
    except OSError:  # the file was removed meanwhile
        return False


def _headers(section: Section) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in section.values.items():
        if name not in _HEADERS or value is None:
            continue
        allowed = _HEADERS[name]
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            section.refuse("a header's value is one line of printable ASCII; put it in quotes", name)
        elif allowed is not None and value not in allowed:
            section.refuse(f"must be {listed(allowed)}", name)
        elif trimmed := value.strip():  # as Go does, and h11 requires
            found[name] = trimmed
    return found


def _users(section: Section) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    if len(section.values) > MAX_USERS:
        section.refuse(f"has more than {MAX_USERS} users", at_key=True)
    for name, hashed in section.values.items():
        if not isinstance(name, str):
            section.refuse("a user's name is text: put it in quotes", name, at_key=True)
        elif ":" in name:
            section.refuse("a user's name has no colon: none can be sent (RFC 7617)", name, at_key=True)
        elif not isinstance(hashed, str) or not _HASH.fullmatch(hashed):
            section.refuse(_NO_HASH, name)
        else:
            found[name.encode()] = hashed.encode()
    return found


def _rate(section: Section) -> Rate | None:
    interval = _duration(section.values.get("interval") or 0)
    if interval is None:
        section.refuse("this is not a duration: write it as 500ms, 10s or 1m", "interval")
    burst = section.values.get("burst") or 0
    where = ("burst",) if "burst" in section.values else ()
    if not isinstance(burst, int) or isinstance(burst, bool) or not 0 <= burst <= 1_000_000:
        section.refuse("burst must be a number up to 1000000", *where)
    elif interval and not burst:
        section.refuse("burst must be at least 1: with 0, no request is let in", *where)
    elif interval and interval >= SHORTEST_INTERVAL:
        return Rate(interval, burst)
    return None


def _is_blank(content: bytes) -> bool:
    return all(not text or text.startswith(b"#") for text in map(bytes.strip, content.splitlines()))


def _duration(value: object) -> float | None:
    """Return a Go duration in seconds, None if it is invalid. As in Go, a plain number is in nanoseconds."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value * 1e-9 if 0 <= value < 1 << 63 else None
    if not isinstance(value, str) or not re.fullmatch(f"(?:{_DURATION.pattern})+|0", value):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(value))
