"""config: warnings about what is valid and probably not meant. Without a reason there is none."""

from pathlib import Path

import pytest

from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS


def warnings(directory: Path, probe: str) -> list[str]:
    file = directory / "c.yaml"
    otlp = "otlp: {}\n" if "export" in probe else ""
    file.write_text(f"{otlp}probes: [{{name: p, {probe}}}]")
    return [text.partition("warning: ")[2] for text in load([file], DECODERS).warnings]


def connect(fetch: str, port: str) -> str:
    """Return a probe that has the address and the port of a connection as labels."""
    labels = f"{{to: {{field: to, decode: ip}}, port: {port}}}"
    return (
        f"attach: 'call:tcp_v4_connect', fetch: {{to: '+4(uaddr):u32', port: '{fetch}'}},"
        f" metrics: [{{counter: a_total, labels: {labels}}}]"
    )


def test_a_port_beside_an_address(tmp_path: Path) -> None:
    assert warnings(tmp_path, connect("+2(uaddr):u16", "port")) == [
        "'port' has 16 bits and lies beside an address: if it is a port, it is in network order:"
        " {field: port, decode: port}"
    ]


@pytest.mark.parametrize(
    ("fetch", "port"),
    [
        ("+2(uaddr):u16", "{field: port, decode: port}"),
        ("+2(uaddr):u16", "{field: port, decode: hex}"),
        ("+8(uaddr):u32", "port"),
        ("+2(sk):u16", "port"),
        ("$arg3:u16", "port"),
    ],
)
def test_what_is_no_port_or_decoded(tmp_path: Path, fetch: str, port: str) -> None:
    assert warnings(tmp_path, connect(fetch, port)) == []


SECONDS = "'duration' is in seconds: if they are meant, write {0}s, else {0}ms or {0}us"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("duration > 1000", [SECONDS.format(1000)]),
        ("n == 1 && duration >= 300.5", [SECONDS.format(300.5)]),
        ("duration < 0", ["'duration' is above 0, so this is never true"]),
        ("duration == 0", ["'duration' is above 0, so this is never true"]),
        ("duration > -1", ["'duration' is above 0, so this is always true"]),
        ("duration > 1000s", []),
        ("duration > 0", []),
        ("duration > 10ms && n > 1000", []),
    ],
)
def test_a_duration_in_another_unit(tmp_path: Path, written: str, expected: list[str]) -> None:
    call = "attach: 'call:f', fetch: {n: '$arg1:u32'}"
    pair = "attach: {pair: {from: {to: 'kprobe:f', fetch: {n: '$arg1:u32'}}, to: 'kprobe:g', key: tid}}"
    for probe in (
        f"{call}, filter: '{written}'",
        f"{pair}, filter: '{written}'",
        f"{call}, metrics: [{{counter: a_total, where: '{written}'}}]",
        f"{call}, export: {{as: span, where: '{written}'}}",
    ):
        assert warnings(tmp_path, probe) == expected
