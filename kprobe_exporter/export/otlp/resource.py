"""The OpenTelemetry resource: this service, its host and kernel, and attributes from the environment."""

import logging
import os
from collections.abc import Mapping
from urllib.parse import unquote

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.version import __version__ as sdk_version

from kprobe_exporter import __version__

log = logging.getLogger(__name__)

NODE_NAMES = ("K8S_NODE_NAME", "NODE_NAME")
"""Variables that a manifest fills with the node's name (``fieldRef: spec.nodeName``)."""


def resource(environ: Mapping[str, str] = os.environ, system: os.uname_result | None = None) -> Resource:
    """The resource of all signals. OTEL_SERVICE_NAME overrides OTEL_RESOURCE_ATTRIBUTES, and these ours.

    In Kubernetes the node is the host, because the host name that a pod sees is the pod's. Invalid entries in
    the environment are omitted, with a warning.
    """
    system = os.uname() if system is None else system
    node = next((environ[name].strip() for name in NODE_NAMES if environ.get(name, "").strip()), None)
    attributes = {
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": sdk_version,
        "service.name": "kprobe_exporter",
        "service.version": __version__,
        "host.name": node or system.nodename,
        "os.type": "linux",
        "os.name": system.sysname,
        "os.version": system.release,
        "os.description": f"{system.sysname} {system.release} {system.version} {system.machine}",
    }
    if node:
        attributes["k8s.node.name"] = node
    attributes |= _listed(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if name := environ.get("OTEL_SERVICE_NAME", "").strip():
        attributes["service.name"] = name
    return Resource({_text(key): _text(value) for key, value in attributes.items()})


def _listed(text: str) -> dict[str, str]:
    """Parse ``KEY=VALUE,…``, with special characters in both as ``%XX`` (the SDK's specification)."""
    found: dict[str, str] = {}
    for number, part in enumerate(text.split(","), 1):
        key, equals, value = part.partition("=")
        if equals and key.strip():
            found[unquote(key.strip())] = unquote(value.strip())
        elif part.strip():  # which may be a part of a secret
            log.warning("entry %d of OTEL_RESOURCE_ATTRIBUTES is not a KEY=VALUE: it is ignored", number)
    return found


def _text(value: str) -> str:
    """Replace the surrogates that stand for bytes of the environment that are not UTF-8."""
    return value.encode(errors="surrogateescape").decode(errors="replace")
