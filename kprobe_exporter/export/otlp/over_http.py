"""OTLP over HTTP: the SDK's exporters, with our own handling of the collector's answers.

The exporters alone treat a redirect and a partial success as a success
(opentelemetry/exporter/otlp/common/http.py, _OTLPHTTPClient.export).
"""

import math
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from kprobe_exporter.export.otlp.deadline import Connections, Deadline
from kprobe_exporter.export.otlp.retry import (
    TIMED_OUT,
    NotTaken,
    RequestOutcome,
    Retries,
    accepted,
    cause_of,
    root_of,
)
from kprobe_exporter.export.otlp.settings import MAX_REQUEST, OtlpSettings, Signal, timeout_of


class HttpSpanExporter(OTLPSpanExporter):
    """The SDK's exporter for a request that is encoded already."""

    def export(self, request: bytes) -> None:  # type: ignore[override]
        if len(request) > MAX_REQUEST:
            raise ValueError("servers accept no request of this size")
        self._client.export(request)


EXPORTERS: Mapping[Signal, Callable[..., Any]] = {
    "logs": OTLPLogExporter,
    "traces": HttpSpanExporter,
    "metrics": OTLPMetricExporter,
}
COMPRESSION = {"gzip": Compression.Gzip, "none": Compression.NoCompression, None: None}

RETRYABLE = frozenset({429, 502, 503, 504})
"""The OTLP specification, "Failures"."""

MAX_BODY = 64 << 10
"""Bytes of an answer that are read: a valid answer holds a count and a sentence."""


def exporter(signal: Signal, settings: OtlpSettings, attempts: Retries) -> Any:
    """Create the SDK's exporter of one signal, which takes missing settings from the environment."""
    return EXPORTERS[signal](
        endpoint=settings.endpoint and f"{settings.endpoint.rstrip('/')}/v1/{signal}",
        certificate_file=settings.certificate,
        client_certificate_file=settings.client_certificate,
        client_key_file=settings.client_key,
        headers=settings.headers,
        timeout=timeout_of(signal, settings),
        compression=COMPRESSION[settings.compression],
        session=Session(attempts),
        max_request_size=MAX_REQUEST,
    )


class Session(requests.Session):
    """Retries each request of the SDK as needed, and returns only the final response to the SDK.

    Raises NotTaken, which the SDK does not treat as a connection error and therefore does not retry.
    """

    def __init__(self, attempts: Retries) -> None:
        super().__init__()
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        # Without this, requests reads ~/.netrc, and an entry there replaces the configured header.
        self.auth = lambda request: request
        self._attempts = attempts
        self._connections = Connections()
        self._deadline = Deadline(self._connections.shut_down)
        for scheme in ("http://", "https://"):
            self.mount(scheme, self._connections)

    def request(self, *args: Any, **options: Any) -> requests.Response:
        try:
            return super().request(*args, **options)
        except (requests.RequestException, ValueError) as error:  # nothing was sent yet
            self._attempts.answer = RequestOutcome(False, root_of(error))
            raise NotTaken from error

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        timeout = options.pop("timeout")
        options["stream"] = True  # so that an endless body is not read in full
        if isinstance(self.verify, str):
            options["verify"] = self.verify  # requests would prefer REQUESTS_CA_BUNDLE
        response = requests.Response()

        without_items = request.copy()
        without_items.body = b""
        without_items.headers["content-length"] = "0"
        without_items.headers.pop("content-encoding", None)

        def once(left: float, sent: requests.PreparedRequest) -> RequestOutcome:
            nonlocal response
            try:
                with requests.Session.send(self, sent, timeout=left, **options) as response:
                    # A connection that was shut down ends a status line and headers like any others.
                    return TIMED_OUT if self._deadline.is_over else self._answer(response)
            except requests.RequestException as error:
                if self._deadline.is_over or isinstance(error, requests.ReadTimeout):
                    return TIMED_OUT
                broken = isinstance(error, (requests.ConnectionError, requests.Timeout))
                of_tls = isinstance(error, requests.exceptions.SSLError)
                of_tls = of_tls and not isinstance(cause_of(error), ssl.SSLEOFError)
                return RequestOutcome(False, root_of(error), retry=broken and not of_tls)

        def attempt(left: float, empty: bool) -> RequestOutcome:
            return self._deadline.run(lambda: once(left, without_items if empty else request), left)

        if not self._attempts.run(attempt, timeout):
            raise NotTaken
        return response

    def close(self) -> None:
        """Close the connections, also that of a request that is under way."""
        self._connections.shut_down()
        self._deadline.close()
        super().close()

    def _answer(self, response: requests.Response) -> RequestOutcome:
        status, body = response.status_code, _body(response)
        if 200 <= status < 300:
            return _accepted(body)
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


def _accepted(body: bytes) -> RequestOutcome:
    """The outcome of an accepted request. Of a body that is no OTLP response, only the status is known.

    The responses of all signals are encoded alike: opentelemetry/proto/collector differs in names alone.
    """
    with suppress(Exception):
        return accepted(ExportTraceServiceResponse.FromString(body))
    return RequestOutcome(True)


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
