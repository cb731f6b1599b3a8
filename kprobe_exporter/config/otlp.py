"""The models of `otlp` and a probe's `export` as users write them, with the checks of single values.

A value in `otlp` may be a secret from the environment, so no sentence here quotes a value.
"""

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, Tag, WithJsonSchema

from kprobe_exporter.config.fields import (
    DURATION,
    HEADER_NAME,
    Attributes,
    Size,
    Strict,
    Where,
    duration,
    no_items,
    shapes,
)

_ENDPOINT = re.compile(
    r"(?P<scheme>https?://)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?"
)
_HEADER = re.compile(r"[!-~](?:[ -~]*[!-~])?")

# These headers say how the message itself is sent; gRPC (doc/PROTOCOL-HTTP2.md) reserves further names.
_MESSAGE_HEADERS = frozenset(
    "connection content-encoding content-length content-type te trailer transfer-encoding upgrade".split()
)


def _seconds(value: object) -> object:
    try:
        return duration(value)
    except ValueError:
        raise ValueError("this is not a duration: write it as 500ms, 10s or 1m") from None


def _endpoint(text: str) -> str:
    if "@" in text.removeprefix("http://").removeprefix("https://").partition("/")[0]:
        raise ValueError("a user and a password have no place here: send them in `headers`, as authorization")
    found = _ENDPOINT.fullmatch(text)
    port = found and found["port"]
    if not found or (not found["scheme"] and (port is None or found["path"])):
        raise ValueError("this is not an endpoint: write it as http://HOST:4318, or for gRPC as HOST:4317")
    if port is not None and not 0 < int(port) < 1 << 16:
        raise ValueError("a port is a number from 1 to 65535")
    return text


def _header_name(name: str) -> str:
    lower = name.lower()
    if lower in _MESSAGE_HEADERS or lower.startswith("grpc-") or lower.endswith("-bin"):
        raise ValueError("this header is the protocol's own: leave it out")
    return name


def _header(text: str) -> str:
    if not _HEADER.fullmatch(text):
        raise ValueError(
            "a header's value is one line of printable ASCII, with no blank at its ends;"
            " a variable that was read from a file may have a line end there"
        )
    return text


def _lower_case(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers with their names in lower case, as gRPC requires. Two must not become one."""
    lower: dict[str, str] = {}
    for name, value in headers.items():
        if name.lower() in lower:
            raise ValueError(f"the header {name.lower()} is there twice, case makes no difference: keep one")
        lower[name.lower()] = value
    return lower


def _or_variable(**schema: object) -> WithJsonSchema:
    """Return a schema that tells editors that a `${NAME}` is allowed as well."""
    return WithJsonSchema({"anyOf": [schema, {"type": "string", "pattern": r"\$\{"}]})


Signal: TypeAlias = Literal["log", "span", "line"]
Protocol: TypeAlias = Annotated[
    Literal["http/protobuf", "grpc"], _or_variable(enum=["http/protobuf", "grpc"])
]
Compression: TypeAlias = Annotated[Literal["gzip", "none"], _or_variable(enum=["gzip", "none"])]
Endpoint: TypeAlias = Annotated[
    str, Field(max_length=2048, examples=["http://localhost:4318"]), AfterValidator(_endpoint)
]
Headers: TypeAlias = Annotated[
    dict[
        Annotated[str, Field(pattern=HEADER_NAME), AfterValidator(_header_name)],
        Annotated[str, Field(max_length=8192), AfterValidator(_header)],
    ],
    Field(max_length=64, examples=[{"authorization": "Bearer ${OTLP_TOKEN}"}]),
    AfterValidator(_lower_case),
]
File: TypeAlias = Annotated[str, Field(min_length=1, max_length=4095)]
Rate: TypeAlias = Annotated[float, Field(gt=0, le=1e6)]

_DURATION = _or_variable(type=["number", "string"], pattern=DURATION, examples=["10s"])


class PushModel(Strict):
    """Pushing the metrics of the probes and of the agent as well."""

    interval: Annotated[float, BeforeValidator(_seconds), Field(ge=1, le=86400), _DURATION] = 60.0
    """The time from one push to the next, as `60s`."""


class OtlpModel(Strict):
    """The destination of OpenTelemetry's signals. A setting that is missing comes from the
    OTEL_EXPORTER_OTLP_* environment.

    A `${NAME}` in a text is replaced from the environment, and `$$` is one `$`.
    """

    endpoint: Endpoint | None = None
    """The collector: `http://HOST:4318`, to which `/v1/traces` and the like are added; for gRPC
    `http://HOST:4317`, `https://HOST:4317` or `HOST:4317`. gRPC uses TLS without `http://`."""
    protocol: Protocol | None = None
    """`http/protobuf` or `grpc`."""
    headers: Headers | None = None
    """NAME to value, sent with every request, as `authorization: "Bearer ${OTLP_TOKEN}"`."""
    timeout: Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=3600), _DURATION] | None = None
    """How long the collector may take to answer a request, as `10s`."""
    retry: Annotated[float, BeforeValidator(_seconds), Field(ge=0, le=86400), _DURATION] = 300.0
    """How long log records and spans are sent again to a collector that is away or busy, as `5m`. With `0`
    a batch is lost if it was not accepted within `timeout`."""
    compression: Compression | None = None
    """`gzip` or `none`."""
    certificate: File | None = None
    """CA certificates (PEM) to verify the collector's with; a path is relative to the configuration file."""
    client_certificate: File | None = None
    """The agent's own certificate (PEM), if the collector asks for one."""
    client_key: File | None = None
    """The key of that certificate (PEM)."""
    queue: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """How many log records may wait to be sent, and how many spans, of at most 4 KiB on average;
    more are dropped and counted."""
    max_per_second: Rate = 2000.0
    """The most log records and spans that are sent per second, for all probes together."""
    metrics: PushModel | None = None
    """Whether the metrics are pushed as well, and how often: `{interval: 60s}`."""


class LinesModel(Strict):
    """The destination of the events that are exported as lines of JSON."""

    to: Annotated[str, Field(pattern=r"^(stdout|syslog|/.+)$", max_length=4095)] = "stdout"
    """`stdout`, `syslog` (the socket /dev/log), or the absolute path of a file."""
    max_size: Size = 64 << 20
    """The size at which a file is renamed to `FILE.1` and a new one begins, as `64MiB`."""
    files: Annotated[int, Field(ge=1, le=1000)] = 5
    """How many renamed files are kept."""


class ExportModel(Strict):
    """Single events of the probe, as OpenTelemetry's log records or spans, or as lines of JSON."""

    # `as` is a keyword of Python.
    signal: Signal = Field(alias="as")
    """`log` for a single moment; `span` for what takes time, a call or a pair; `line` for a line of JSON."""
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share that is kept, above 0 and up to 1; of nested calls, the outermost one's draw decides."""
    max_per_second: Rate | None = None
    """The most that this probe sends per second."""
    where: Where | None = None
    """A filter on the probe's fields, evaluated in the agent, for the export alone."""
    attributes: Attributes = Field(
        default_factory=no_items, examples=[{"device": {"field": "dev", "decode": "majorminor"}}]
    )
    """NAME to field or to `{field, decode}`, written as metric labels are, and sent in addition. A list
    instead names pointers of `fetch` that are sent, too."""


Exported: TypeAlias = Annotated[
    Annotated[Signal, Tag("<text>")] | Annotated[ExportModel, Tag("<mapping>")],
    shapes("export is log, span, line, or a mapping: {as: log, sample: 0.1, …}"),
]
