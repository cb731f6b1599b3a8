"""OTLP over HTTP: the SDK's exporters, with every answer of the collector read by us.

By themselves they take a redirect and a partial success for a success
(opentelemetry/exporter/otlp/common/http.py, _OTLPHTTPClient.export).
"""

import math
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from kprobe_exporter.export.otlp.answers import MAX_REQUEST, partial
from kprobe_exporter.export.otlp.attempts import Answer, Attempts, NotTaken, root_of
from kprobe_exporter.export.otlp.settings import Settings, Signal

EXPORTERS: Mapping[Signal, Callable[..., Any]] = {
    "logs": OTLPLogExporter,
    "traces": OTLPSpanExporter,
    "metrics": OTLPMetricExporter,
}
COMPRESSION = {"gzip": Compression.Gzip, "none": Compression.NoCompression, None: None}

RETRYABLE = frozenset({429, 502, 503, 504})
"""The OTLP specification's, "Failures"."""

MAX_BODY = 64 << 10
"""Bytes of an answer that are read: it has a count and a sentence in it."""


def exporter(signal: Signal, settings: Settings, attempts: Attempts) -> Any:
    """The SDK's exporter of one signal; what the settings leave out it takes from the environment."""
    endpoint = settings.endpoint and f"{settings.endpoint.rstrip('/')}/v1/{signal}"
    return EXPORTERS[signal](
        endpoint=endpoint,
        certificate_file=settings.certificate,
        client_certificate_file=settings.client_certificate,
        client_key_file=settings.client_key,
        headers=settings.headers,
        timeout=settings.timeout,
        compression=COMPRESSION[settings.compression],
        session=Session(signal, attempts),
        max_request_size=MAX_REQUEST,
    )


class Session(requests.Session):
    """Sends what the SDK hands it as often as it takes, and tells the SDK nothing but how it ended.

    Raises NotTaken, which the SDK does not take for an error of the connection, and so leaves alone.
    """

    def __init__(self, signal: Signal, attempts: Attempts) -> None:
        super().__init__()
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        # Else requests looks into ~/.netrc, and what is there replaces the header that was set.
        self.auth = lambda request: request
        self._signal = signal
        self._attempts = attempts

    def request(self, *args: Any, **options: Any) -> requests.Response:
        try:
            return super().request(*args, **options)
        except (requests.RequestException, ValueError) as error:  # before anything could be sent
            self._attempts.answer = Answer(False, root_of(error))
            raise NotTaken from error

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        timeout = options.pop("timeout")
        options["stream"] = True  # so that a body without end is not read to its end
        if isinstance(self.verify, str):
            options["verify"] = self.verify  # to requests, REQUESTS_CA_BUNDLE is more than what we set
        response = requests.Response()

        def once(left: float) -> Answer:
            nonlocal response
            try:
                with requests.Session.send(self, request, timeout=left, **options) as response:
                    return self._answer(response)
            except requests.RequestException as error:
                broken = isinstance(error, (requests.ConnectionError, requests.Timeout))
                of_tls = isinstance(error, requests.exceptions.SSLError)
                return Answer(False, root_of(error), retry=broken and not of_tls)

        if not self._attempts.run(once, timeout):
            raise NotTaken
        return response

    def _answer(self, response: requests.Response) -> Answer:
        status, body = response.status_code, _body(response)
        if 200 <= status < 300:
            return partial(self._signal, body)
        reason = f"the collector answered {status} {response.reason}"
        if said := _message(response.headers.get("content-type", ""), body):
            reason += f": {said}"
        after = _seconds(response.headers.get("retry-after"))
        return Answer(False, reason, retry=status in RETRYABLE, after=after)


def _body(response: requests.Response) -> bytes:
    """The body if it is a short one. The status stands, whatever becomes of what follows it."""
    read = b""
    try:
        for chunk in response.iter_content(MAX_BODY):
            read += chunk
            if len(read) > MAX_BODY:
                return b""
    except (requests.RequestException, OSError):
        return b""
    return read


def _message(content_type: str, body: bytes) -> str:
    """What the collector says about an error: a google.rpc.Status, or some text."""
    if content_type.partition(";")[0].strip() != "application/x-protobuf":
        return body[:1000].decode(errors="replace").strip()
    try:
        said: str = Status.FromString(body).message
    except Exception:  # the library's DecodeError is not always this class: damage is damage
        return ""
    return said


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After header: seconds, or a date (RFC 9110, 10.2.3). None if there is none to understand."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
