"""OTLP over HTTP: one session, and the meaning of the collector's answers."""

import gzip
import math
import os
import ssl
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy

import requests
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from kprobe_exporter.export.otlp.deadline import Connections, Deadline
from kprobe_exporter.export.otlp.encode import accepted
from kprobe_exporter.export.otlp.retry import TIMED_OUT, RequestOutcome, cause_of, root_of
from kprobe_exporter.export.otlp.settings import (
    USER_AGENT,
    OtlpSettings,
    Signal,
    compressed,
    files_of,
    headers_of,
)

RETRYABLE = frozenset({429, 502, 503, 504})
"""The OTLP specification, "Failures"."""

MAX_BODY = 64 << 10
"""Bytes of an answer that are read: a valid answer holds a count and a sentence."""


class HttpLink:
    """The session of one signal. Each request runs in a thread of its own, which a deadline gives up."""

    def __init__(self, signal: Signal, settings: OtlpSettings) -> None:
        self._url = _url(signal, settings)
        self._gzip = compressed(signal, settings)
        headers = {"content-type": "application/x-protobuf", "user-agent": USER_AGENT}
        self._headers = headers | headers_of(signal, settings)
        files = files_of(signal, settings)
        # Given with each request, because requests would prefer REQUESTS_CA_BUNDLE to the session's.
        self._verify = files["certificate"]
        self._session = requests.Session()
        certificate, key = files["client_certificate"], files["client_key"]
        self._session.cert = (certificate, key) if certificate and key else certificate
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        # Without this, requests reads ~/.netrc, and an entry there replaces the configured header.
        self._session.auth = lambda request: request
        self._connections = Connections()
        self._deadline = Deadline(self._connections.shut_down)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, self._connections)

    def send(self, request: bytes, timeout: float) -> RequestOutcome:
        """Send a request once."""
        return self._deadline.run(lambda: self._send(request, timeout), timeout)

    def close(self) -> None:
        """Close the connections, also that of a request that is under way."""
        self._connections.shut_down()
        self._deadline.close()
        self._session.close()

    def _send(self, body: bytes, timeout: float) -> RequestOutcome:
        headers = self._headers
        if body and self._gzip:
            body, headers = gzip.compress(body), {"content-encoding": "gzip", **headers}
        try:
            with self._session.post(
                self._url,
                data=body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                stream=True,  # so that an endless body is not read in full
                verify=self._verify,
            ) as response:
                # A connection that was shut down ends a status line and headers like any others.
                return TIMED_OUT if self._deadline.is_over else self._answer(response)
        except requests.RequestException as error:
            if self._deadline.is_over or isinstance(error, requests.ReadTimeout):
                return TIMED_OUT
            broken = isinstance(error, (requests.ConnectionError, requests.Timeout))
            of_tls = isinstance(error, requests.exceptions.SSLError)
            of_tls = of_tls and not isinstance(cause_of(error), ssl.SSLEOFError)
            return RequestOutcome(False, root_of(error), retry=broken and not of_tls)

    def _answer(self, response: requests.Response) -> RequestOutcome:
        status, body = response.status_code, _body(response)
        if 200 <= status < 300:
            return accepted(body)
        reason = f"the collector answered {status} {response.reason}"
        if said := _message(response.headers.get("content-type", ""), body):
            reason += f": {said}"
        after = _seconds(response.headers.get("retry-after"))
        return RequestOutcome(False, reason, retry=status in RETRYABLE, after=after)


def _body(response: requests.Response) -> bytes:
    """The body; empty if it is too long or cannot be read, because the status alone is valid too."""
    read = b""
    with suppress(requests.RequestException, OSError):
        for chunk in response.iter_content(MAX_BODY):
            read += chunk
            if len(read) > MAX_BODY:
                return b""
        return read
    return b""


def _url(signal: Signal, settings: OtlpSettings) -> str:
    """Return where requests go. The signal's own variable has the whole URL, others its beginning."""
    own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    if own and not settings.endpoint:
        return own
    base = settings.endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
    return f"{base.rstrip('/')}/v1/{signal}"


def _message(content_type: str, body: bytes) -> str:
    """The collector's message about an error: from a google.rpc.Status, or plain text."""
    if content_type.partition(";")[0].strip() != "application/x-protobuf":
        return body[:1000].decode(errors="replace").strip()
    with suppress(Exception):  # damaged data; the class of the library's DecodeError varies
        said: str = Status.FromString(body).message
        return said
    return ""


def _seconds(retry_after: str | None) -> float | None:
    """The seconds of a Retry-After header, a number or a date (RFC 9110, 10.2.3); None if not valid."""
    if retry_after is None:
        return None
    seconds = math.nan
    with suppress(ValueError, OverflowError):
        seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
    with suppress(ValueError):
        seconds = float(retry_after)
    return max(0.0, seconds) if math.isfinite(seconds) else None
