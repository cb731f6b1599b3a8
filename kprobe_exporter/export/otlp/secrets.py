"""Removes secrets from texts of others: libraries quote headers and URLs, a collector may quote a token."""

import os
import re
from collections.abc import Callable, Iterator
from urllib.parse import quote, unquote

from kprobe_exporter.export.otlp.settings import OtlpSettings, Signal

SHORTEST = 4
"""Characters; what is shorter is no secret, and would tear other words apart."""

REMOVED = "***"

# It begins at the beginning of a word only: a long word without an @ would take quadratic time.
_USER_OF_URL = re.compile(r"(?<![^\s/@'\"])[^\s/@'\"]+@")


def redaction(signal: Signal, settings: OtlpSettings) -> Callable[[str], str]:
    """Return a function that replaces the secrets of these settings and of the environment in a text."""
    found = {form for secret in _secrets(signal, settings) for form in _forms(secret)}
    longest_first = sorted((form for form in found if len(form) >= SHORTEST), key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in longest_first:
            text = text.replace(secret, REMOVED)
        return _USER_OF_URL.sub(f"{REMOVED}@", text)

    return redact


def _secrets(signal: Signal, settings: OtlpSettings) -> Iterator[str]:
    """Yield the values of headers, and what URLs have before their ``@``, with the parts of both."""
    of_signal = f"OTEL_EXPORTER_OTLP_{signal.upper()}_"
    values, urls = list((settings.headers or {}).values()), [settings.endpoint or ""]
    for prefix in ("OTEL_EXPORTER_OTLP_", of_signal):
        parts = os.environ.get(f"{prefix}HEADERS", "").split(",")
        values += [part.partition("=")[2] or part for part in parts]
        urls.append(os.environ.get(f"{prefix}ENDPOINT", ""))
    urls += [value for name, value in os.environ.items() if name.lower().endswith("_proxy")]
    for value in values:
        yield value
        words = unquote(value).split()
        yield from words[len(words) > 1 :]  # without "Bearer" and the like
    for url in urls:
        user, at, _ = url.partition("://")[2].rpartition("@") if "://" in url else url.rpartition("@")
        if at:
            yield user
            yield user.partition("/")[0]  # a parser takes this for the host
            yield from re.split("[:/@?#]", user.partition(":")[2])
            yield user.partition(":")[2]


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as a message may have it: as it is, as Python shows it, quoted for a URL or not."""
    for text in (secret, secret.strip(), unquote(secret)):
        yield text
        yield repr(text)[1:-1]
        yield quote(text, errors="surrogatepass")
