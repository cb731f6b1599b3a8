"""Where OpenTelemetry's signals go, as plain values, and what the environment says instead."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kprobe_exporter.errors import StartError

Signal: TypeAlias = Literal["logs", "traces", "metrics"]
Protocol: TypeAlias = Literal["http/protobuf", "grpc"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How the collector is reached. What is None comes from the OTEL_EXPORTER_OTLP_* environment.

    ``endpoint`` is one for all signals: for HTTP without ``/v1/logs`` and the like. ``timeout`` in
    seconds, for a request and all its repetitions. The last three are names of PEM files.
    """

    endpoint: str | None = None
    protocol: Protocol | None = None
    headers: Mapping[str, str] | None = None
    timeout: float | None = None
    compression: Literal["gzip", "none"] | None = None
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None


def protocol_of(signal: Signal, settings: Settings) -> Protocol:
    """The protocol, by default the one that the specification recommends. Raises StartError.

    The SDK's exporters are one protocol each, and leave this variable to whoever chooses among them.
    """
    found = settings.protocol or variable(signal, "PROTOCOL") or "http/protobuf"
    match found.strip():
        case "http/protobuf":
            return "http/protobuf"
        case "grpc":
            return "grpc"
    raise StartError(
        f"OTEL_EXPORTER_OTLP_PROTOCOL is {found!r}, which is not supported: set it to http/protobuf or grpc."
    )


def variable(signal: Signal, name: str) -> str | None:
    """A variable of the environment: the signal's own, or else the one for all signals."""
    environ = os.environ
    return environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}") or environ.get(
        f"OTEL_EXPORTER_OTLP_{name}"
    )


def check(signal: Signal, settings: Settings) -> None:
    """Find what can be known to be wrong before anything is sent. Raises StartError."""
    if settings.endpoint and protocol_of(signal, settings) != "grpc" and "://" not in settings.endpoint:
        raise StartError(
            f"otlp.endpoint is {settings.endpoint!r}: with http/protobuf write http:// or https:// before it."
        )
    files = {
        "certificate": settings.certificate or variable(signal, "CERTIFICATE"),
        "client_certificate": settings.client_certificate or variable(signal, "CLIENT_CERTIFICATE"),
        "client_key": settings.client_key or variable(signal, "CLIENT_KEY"),
    }
    for name, file in files.items():
        if file:
            try:
                open(file, "rb").close()
            except OSError as error:
                raise StartError(f"otlp.{name}: {file} cannot be read: {error.strerror}.") from None
