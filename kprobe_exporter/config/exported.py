"""Checks what is exported and where to: `otlp` of all files together, and a probe's `export`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from kprobe_exporter.config.kernel import EVENTS
from kprobe_exporter.config.metrics import check_where
from kprobe_exporter.config.otlp import ExportModel, OtlpModel
from kprobe_exporter.config.schema import ProbeModel
from kprobe_exporter.config.sites import BUILT_IN, Alternative, Report
from kprobe_exporter.config.values import Export, Otlp
from kprobe_exporter.config.wording import listed, quote
from kprobe_exporter.grammar.lexis import closest

FILES = ("certificate", "client_certificate", "client_key")

NOWHERE = (
    "nothing says where it goes: add `otlp: {endpoint: …}` at the top, or `otlp: {}` for what the"
    " OTEL_EXPORTER_OTLP_* environment says"
)
IDLE = "nothing goes there: no probe that is enabled has `export`, and `metrics` is not asked for"


def located(written: Mapping[str, object], file: str) -> dict[str, object]:
    """Return a file's ``otlp`` with its paths resolved against the file's directory."""
    return {
        key: str(Path(file).parent / value) if key in FILES and isinstance(value, str) and value else value
        for key, value in written.items()
    }


def otlp_of(merged: Mapping[str, object]) -> Otlp:
    """Convert well-formed keys. The names of headers become lower case, as gRPC requires."""
    model = OtlpModel.model_validate(merged)
    headers = model.headers
    return Otlp(
        endpoint=model.endpoint,
        protocol=model.protocol,
        headers=None if headers is None else {name.lower(): value for name, value in headers.items()},
        timeout=model.timeout,
        compression=model.compression,
        certificate=model.certificate,
        client_certificate=model.client_certificate,
        client_key=model.client_key,
        queue=model.queue,
        max_per_second=model.max_per_second,
        metrics=model.metrics.interval if model.metrics else None,
    )


def wrong_with_otlp(found: Otlp) -> Iterator[tuple[str, str]]:
    """Yield each key that conflicts with another one, with a sentence."""
    given = [key for key in FILES if getattr(found, key) is not None]
    if found.endpoint is not None:
        scheme, _, rest = found.endpoint.rpartition("://")
        if not scheme and found.protocol != "grpc":
            yield "endpoint", "over HTTP it is a URL, as http://HOST:4318; for gRPC add `protocol: grpc`"
        if scheme and found.protocol == "grpc" and rest.partition("/")[2]:
            yield "endpoint", "gRPC takes no path: let it end with the port"
        if scheme == "http":
            for key in given:
                yield key, "the endpoint is without TLS: write https://, or leave this out"
    if ("client_certificate" in given) != ("client_key" in given):
        yield given[-1], "client_certificate and client_key go together: one file may be both"


def export_of(
    model: ExportModel,
    probe: ProbeModel,
    alternatives: tuple[Alternative, ...],
    report: Report,
    *,
    short: bool,
) -> Export:
    """Convert a probe's ``export``, one word if ``short``. Problems go to ``report``, by paths within it."""
    if probe.aggregate == "kernel":
        report((), f"the kernel keeps no events where it aggregates: {EVENTS}")
    if why := _wrong_signal(model.signal, alternatives):
        report(() if short else ("as",), why)
    check_where(model.where, alternatives, report)
    for index, name in enumerate(model.attributes):
        if why := _no_attribute(name, alternatives):
            report(("attributes", index), why)
        elif name in model.attributes[:index]:
            report(("attributes", index), f"{quote(name)} is there already: keep one")
    return Export(model.signal, model.sample, model.max_per_second, model.where, tuple(model.attributes))


def _wrong_signal(signal: str, alternatives: tuple[Alternative, ...]) -> str | None:
    """Return why the signal does not suit: a span has a beginning and an end."""
    targets = [one.attach.target for one in alternatives]
    single = [str(target) for target in targets if not target.kind.is_joined]
    if signal == "span" and single:
        return f"{listed(single)} is one moment: write log, or attach a call or a pair, which take time"
    return None


def _no_attribute(name: str, alternatives: tuple[Alternative, ...]) -> str | None:
    """Return why a field cannot be an attribute, if an alternative does not fetch it."""
    fetched = [one.fields.keys() - BUILT_IN for one in alternatives]
    without = [one for one, names in zip(alternatives, fetched, strict=True) if name not in names]
    if not without:
        return None
    if name in BUILT_IN:
        return f"{quote(name)} is a built-in field, and attributes are names of `fetch`: leave it out"
    hint = closest(name, set().union(*fetched) - {name}) or ": every alternative must fetch it"
    return f"{quote(name)} is not fetched at {listed(str(one.attach.target) for one in without)}{hint}"
