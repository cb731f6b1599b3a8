"""Settings of the OTLP export, with the environment for missing ones, and the secrets in both."""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from kprobe_exporter import __version__
from kprobe_exporter.errors import StartError
from kprobe_exporter.util.file_access import all_may_read, who_may_change

log = logging.getLogger(__name__)

Signal: TypeAlias = Literal["logs", "traces", "metrics"]
Protocol: TypeAlias = Literal["http/protobuf", "grpc"]

MAX_REQUEST = 4 << 20
"""Bytes of one request before compression: the default limit of gRPC servers."""

USER_AGENT = f"kprobe_exporter/{__version__}"

DEFAULT_TIMEOUT = 10.0
"""Seconds, the specification's."""

SHORTEST = 4
"""Characters; a shorter text is not a secret, and its removal would tear other words apart."""

REMOVED = "***"

_QUOTES = "\"'"

# It begins at the beginning of a word only: a long word without an @ would take quadratic time.
_USER_OF_URL = re.compile(r"(?<![^\s/@'\"])[^\s/@'\"]+@")


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """How the collector is reached. Values that are None come from the OTEL_EXPORTER_OTLP_* environment.

    All signals share ``endpoint``, which for HTTP does not include ``/v1/logs`` and the like. ``timeout`` is
    in seconds, for one attempt. A batch of logs or spans is sent again until it is ``retry`` seconds old. If
    ``retry`` is 0, it is sent again within ``timeout``. ``certificate`` and the two after it name
    PEM files.
    """

    endpoint: str | None = None
    protocol: Protocol | None = None
    headers: Mapping[str, str] | None = None
    timeout: float | None = None
    compression: Literal["gzip", "none"] | None = None
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    retry: float = 0.0


def protocol_of(signal: Signal, settings: OtlpSettings) -> Protocol:
    """The protocol of a signal; the default is what the specification recommends. Raises StartError."""
    found = (settings.protocol or variable(signal, "PROTOCOL") or "http/protobuf").strip()
    if found in ("http/protobuf", "grpc"):
        return "grpc" if found == "grpc" else "http/protobuf"
    raise StartError("OTEL_EXPORTER_OTLP_PROTOCOL is not supported: set it to http/protobuf or grpc.")


def variable(signal: Signal, name: str) -> str | None:
    """The value of an environment variable: the signal's own, or else the one for all signals."""
    return os.environ.get(_name_of(signal, name))


def _name_of(signal: Signal, name: str) -> str:
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}"
    return own if os.environ.get(own) else f"OTEL_EXPORTER_OTLP_{name}"


def collector_of(signal: Signal, settings: OtlpSettings) -> str:
    """Return the collector's host and port, as a log line names it. Other parts of a URL may hold secrets."""
    endpoint = settings.endpoint or variable(signal, "ENDPOINT")
    if not endpoint:  # the specification's defaults
        return "localhost:4317" if protocol_of(signal, settings) == "grpc" else "localhost:4318"
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "otlp.endpoint"
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port}" if port else host


def check(signal: Signal, settings: OtlpSettings) -> Protocol:
    """Return the protocol. Raise StartError for mistakes that can be found before anything is sent.

    No message quotes a value: it may be a secret, also one that stands in the wrong variable.
    """
    _check_endpoint(signal, settings)
    for number, entry in enumerate((variable(signal, "HEADERS") or "").split(","), 1):
        name, equals, _ = entry.partition("=")
        if entry.strip() and not (equals and name.strip()):
            where = _name_of(signal, "HEADERS")
            log.warning("entry %d of %s is not a NAME=VALUE: it is ignored", number, where)
    for name, file in files_of(signal, settings).items():
        if file and "-----BEGIN" in file:
            raise StartError(f"otlp.{name} is PEM itself: write it to a file, and give the file's path.")
        if file:
            try:
                with open(file, "rb") as opened:
                    who = who_may_change(opened.fileno())
                    for_all = name == "client_key" and all_may_read(opened.fileno())
            except (OSError, ValueError) as error:  # ValueError: a NUL in the path
                why = getattr(error, "strerror", None) or "it is not a path"
                raise StartError(f"otlp.{name}: {file} cannot be read: {why}.") from None
            if who is not None:
                raise StartError(f"otlp.{name}: {file} is not safe: {who}.")
            if for_all:
                log.warning("otlp.%s: every user of this machine may read %s: chmod o-r it", name, file)
    return protocol_of(signal, settings)


def _check_endpoint(signal: Signal, settings: OtlpSettings) -> None:
    """Raise StartError for an endpoint that no request can reach."""
    where, endpoint = "otlp.endpoint", settings.endpoint
    if not endpoint:
        where, endpoint = _name_of(signal, "ENDPOINT"), variable(signal, "ENDPOINT")
    if not endpoint:
        return
    if re.search(r"\s", endpoint) or endpoint[0] in _QUOTES or endpoint[-1] in _QUOTES:
        raise StartError(f"{where} has a blank or quotes in it: write the URL alone, as http://HOST:4318.")
    try:
        urlsplit(endpoint)
    except ValueError:
        raise StartError(f"{where} is not a URL: write it for example as http://HOST:4318.") from None
    of_http = endpoint.lower().startswith(("http://", "https://"))
    if protocol_of(signal, settings) != "grpc" and not of_http:
        raise StartError(f"{where} has no scheme: with http/protobuf write http:// or https:// before it.")


def timeout_of(signal: Signal, settings: OtlpSettings) -> float:
    """Return the seconds of one attempt. Raises StartError. The variable is in milliseconds."""
    text = variable(signal, "TIMEOUT")
    if settings.timeout is not None or not text:
        return settings.timeout or DEFAULT_TIMEOUT
    if not re.fullmatch(r"0*[1-9]\d{0,8}", text.strip(), re.ASCII):
        where = _name_of(signal, "TIMEOUT")
        raise StartError(f"{where} is not a number of milliseconds: write it for example as 10000.")
    return int(text) / 1000


def compressed(signal: Signal, settings: OtlpSettings) -> bool:
    """Return whether requests are compressed by gzip. Raises StartError."""
    found = (settings.compression or variable(signal, "COMPRESSION") or "none").strip().lower()
    if found in ("gzip", "none"):
        return found == "gzip"
    raise StartError(f"{_name_of(signal, 'COMPRESSION')} is not supported: set it to gzip or none.")


def headers_of(signal: Signal, settings: OtlpSettings) -> dict[str, str]:
    """Return the headers of each request, by lower-case name. The settings' come before the environment's."""
    from opentelemetry.util.re import parse_env_headers  # noqa: PLC0415  # not before something is exported

    headers = dict(parse_env_headers(variable(signal, "HEADERS") or "", liberal=True))
    return headers | {name.lower(): value for name, value in (settings.headers or {}).items()}


def files_of(signal: Signal, settings: OtlpSettings) -> dict[str, str | None]:
    """Return the names of the PEM files, by the setting's name; None for a file that is not configured."""
    return {
        "certificate": settings.certificate or variable(signal, "CERTIFICATE"),
        "client_certificate": settings.client_certificate or variable(signal, "CLIENT_CERTIFICATE"),
        "client_key": settings.client_key or variable(signal, "CLIENT_KEY"),
    }


def redaction(signal: Signal, settings: OtlpSettings) -> Callable[[str], str]:
    """Return a function that replaces the secrets of these settings and of the environment in a text.

    Libraries quote headers and URLs in their messages, and a collector may quote a token.
    """
    found = {form for secret in _secrets(signal, settings) for form in _forms(secret)}
    longest_first = sorted((form for form in found if len(form) >= SHORTEST), key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in longest_first:
            text = text.replace(secret, REMOVED)
        return _USER_OF_URL.sub(f"{REMOVED}@", text)

    return redact


def _secrets(signal: Signal, settings: OtlpSettings) -> Iterator[str]:
    """Yield the values of headers, and what URLs have before their ``@``, with the parts of both."""
    values, urls = list((settings.headers or {}).values()), [settings.endpoint or ""]
    for prefix in ("OTEL_EXPORTER_OTLP_", f"OTEL_EXPORTER_OTLP_{signal.upper()}_"):
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
            password = user.partition(":")[2]
            taken_for_the_host = user.partition("/")[0]  # by a parser
            yield from (user, taken_for_the_host, password, *re.split("[:/@?#]", password))


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as a message may have it: as it is, as Python shows it, quoted for a URL or not."""
    for text in (secret, secret.strip(), unquote(secret)):
        yield from (text, repr(text)[1:-1], quote(text, errors="surrogatepass"))
