"""Whatever a collector does, each item is counted once, no caller blocks, and the log stays short."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import grpc
import pytest

from kprobe_exporter.export.otlp import retry as retry_module
from kprobe_exporter.export.otlp.channel import BATCH, Channel
from kprobe_exporter.export.otlp.settings import OtlpSettings
from kprobe_exporter.export.otlp.transport import Transport
from tests.support.otlp_faults import OK, Collector, Fault, Pair, collector, slow_peer
from tests.support.otlp_spans import connect_traces, span, spans
from tests.support.patience import eventually, patience, within

HTTP: Literal["http/protobuf"] = "http/protobuf"
GRPC: Literal["grpc"] = "grpc"
BOTH = pytest.mark.parametrize("protocol", [HTTP, GRPC])

LINGER = 3600
"""Seconds for which a batch waits to be full, so that its size does not depend on how fast it fills."""


@contextmanager
def connected(endpoint: str, protocol: Any, timeout: float = 5, **more: Any) -> Iterator[Transport]:
    transport = connect_traces(OtlpSettings(endpoint, protocol, timeout=patience(timeout), **more))
    yield transport
    transport.close()


@contextmanager
def sending(
    seen: Collector,
    protocol: Any,
    timeout: float = 5,
    capacity: int = 10_000,
    linger: float = 0.05,
    retry: float = 0,
) -> Iterator[Channel[int]]:
    transport = connect_traces(OtlpSettings(seen.endpoint, protocol, timeout=patience(timeout), retry=retry))
    channel: Channel[int] = Channel("traces", span, transport, capacity, linger=linger)
    channel.start()
    try:
        yield channel
    finally:
        channel.close(0)


def emit(channel: Channel[int], numbers: range) -> None:
    for number in numbers:
        channel.put(number)


def settled(channel: Channel[int], emitted: int) -> tuple[int, int, int]:
    """Wait until all items are counted; return the numbers exported, dropped and failed."""
    eventually(lambda: sum(channel.counts()) >= emitted)
    assert sum(channel.counts()) == emitted
    return channel.counts()


def close(channel: Channel[int], timeout: float, emitted: int) -> tuple[int, int, int]:
    with within(timeout + 1):
        channel.close(patience(timeout))
    assert sum(channel.counts()) == emitted
    counts = channel.counts()
    assert not channel.put(1)
    channel.close(timeout)
    assert channel.counts() == counts.plus(dropped=1)
    return counts


REFUSALS = [
    (HTTP, Fault(status=302, headers={"location": "http://127.0.0.1:1/"})),
    (HTTP, Fault(status=400)),
    (HTTP, Fault(status=401)),
    (HTTP, Fault(status=404)),
    (HTTP, Fault(status=500, retry_after=0)),
    (GRPC, Fault(code=grpc.StatusCode.INVALID_ARGUMENT)),
    (GRPC, Fault(code=grpc.StatusCode.UNAUTHENTICATED)),
    (GRPC, Fault(code=grpc.StatusCode.UNIMPLEMENTED)),
    (GRPC, Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED)),
]


@pytest.mark.parametrize(("protocol", "fault"), REFUSALS)
def test_what_is_refused_is_not_sent_again(protocol: str, fault: Fault) -> None:
    with collector(protocol, fault) as seen, sending(seen, protocol, linger=LINGER) as channel:
        emit(channel, range(1, 2 * BATCH + 1))
        assert settled(channel, 2 * BATCH) == (0, 0, 2 * BATCH)
        assert len(seen.times) == 2
        assert close(channel, 5, 2 * BATCH) == (0, 0, 2 * BATCH)


@BOTH
def test_down(protocol: str) -> None:
    with collector(protocol) as seen, sending(seen, protocol, timeout=0.5) as channel:
        emit(channel, range(1, 1001))
        assert settled(channel, 1000) == (0, 0, 1000)


@BOTH
def test_an_answer_after_the_timeout_comes_too_late(protocol: str) -> None:
    with (
        collector(protocol, Fault(hang=True)) as seen,
        sending(seen, protocol, timeout=0.3, linger=LINGER) as channel,
    ):
        emit(channel, range(1, 2 * BATCH + 1))
        assert settled(channel, 2 * BATCH) == (0, 0, 2 * BATCH)
        assert len(seen.times) <= 2  # too little time is left for a second attempt


def test_a_collector_that_quotes_the_token_it_refuses(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refusal = Fault(status=401, body=b"no such token: t0ken", headers={"content-type": "text/plain"})
    headers = {"authorization": "Bearer t0ken"}
    with collector(HTTP, refusal) as seen, connected(seen.endpoint, HTTP, headers=headers) as transport:
        assert transport.export([span(1)]) == 0
    assert "the collector answered 401 Unauthorized: no such token: ***" in caplog.messages[-1]
    assert "t0ken" not in caplog.text


ANSWER = b"HTTP/1.1 %s\r\ncontent-length: 100000\r\n\r\n"
LATE = "no answer within the timeout"


@pytest.mark.parametrize(
    ("drip", "taken", "reason"),
    [
        (b"HTTP/1.1 200 O", 0, LATE),
        (b"HTTP/1.1 200 OK\r\nx-a: a", 0, LATE),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 50, 0, LATE),
        # The status is there, and stands.
        (ANSWER % b"200 OK", 3, ""),
        (ANSWER % b"503 Busy", 0, "the collector answered 503 Busy"),
    ],
)
def test_an_answer_that_drips_ends_at_the_timeout(
    drip: bytes, taken: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The deadline is of the whole request: a byte that arrives in time does not move it."""
    with collector(HTTP, Fault(drip=drip)) as seen, connected(seen.endpoint, HTTP, 0.5) as transport:
        place = seen.endpoint.rpartition("/")[2]
        with within(1.5):
            assert transport.export(spans([1, 2, 3])) == taken
        assert [line.partition(f"at {place}: ")[2] for line in caplog.messages] == [reason] * bool(reason)
        with within(0.5):
            transport.close()


def test_a_collector_that_drips_does_not_hold_up_the_end() -> None:
    """Once closing, an agent waits for one request that has no answer in time, and drops the rest."""
    drip = Fault(drip=b"HTTP/1.1 200 O")
    with collector(HTTP, drip) as seen, sending(seen, HTTP, timeout=0.5, linger=LINGER) as channel:
        emit(channel, range(1, 20 * BATCH + 1))
        eventually(lambda: seen.times)
        with within(1.5):
            channel.close(patience(10))
        exported, dropped, failed = channel.counts()
        assert (exported, dropped + failed) == (0, 20 * BATCH)
        assert dropped


@BOTH
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_peer_that_reads_or_writes_a_byte_now_and_then(protocol: str, scheme: str) -> None:
    """It takes a large request byte by byte, or draws a handshake out."""
    first = iter([b"\x16\x03\x03\x3f\xff"])

    def exchange(sock: socket.socket) -> None:
        if scheme == "https":
            sock.send(next(first, b"\0"))
        else:
            sock.recv(1)

    with slow_peer(exchange) as address, connected(f"{scheme}://{address}", protocol, 0.5) as transport:
        made = spans([*range(1, 31)], "x" * 100_000)
        with within(1.5):
            assert transport.export(made) == 0
        with within(0.5):
            transport.close()


RETRIED = [
    (HTTP, Fault(status=429, retry_after=0.3), 0.3),
    (HTTP, Fault(status=503, retry_after=0.3), 0.3),
    (HTTP, Fault(status=502), 0.8),
    (HTTP, Fault(reset=True), 0.8),
    (GRPC, Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=0.3), 0.3),
    (GRPC, Fault(code=grpc.StatusCode.UNAVAILABLE, retry_after=0.3), 0.3),
    (GRPC, Fault(code=grpc.StatusCode.UNAVAILABLE), 0.8),
    (GRPC, Fault(code=grpc.StatusCode.ABORTED), 0.8),
]


@pytest.mark.parametrize(("protocol", "fault", "pause"), RETRIED)
def test_a_passing_trouble_costs_nothing(protocol: str, fault: Fault, pause: float) -> None:
    with collector(protocol, fault, OK) as seen, sending(seen, protocol) as channel:
        emit(channel, range(1, 101))
        assert settled(channel, 100) == (100, 0, 0)
        assert sorted(seen.taken) == list(range(1, 101))
        first, second = seen.times[:2]
        assert pause <= second - first < patience(pause + 1)


AWAY = [
    (HTTP, Fault(status=503)),
    (HTTP, Fault(status=429, retry_after=0.5)),
    (HTTP, Fault(reset=True)),
    (HTTP, Fault(hang=True)),
    (HTTP, Fault(drip=b"HTTP/1.1 200 O")),
    (GRPC, Fault(code=grpc.StatusCode.UNAVAILABLE)),
    (GRPC, Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=0.5)),
    (GRPC, Fault(hang=True)),
]


@pytest.mark.parametrize(("protocol", "fault"), AWAY)
def test_a_batch_is_sent_again_for_longer_than_its_timeout(
    protocol: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items after it wait. A collector that does not answer gets empty requests until it does."""
    monkeypatch.setattr(retry_module, "FIRST_BACKOFF", 0.1)
    with (
        collector(protocol, *[fault] * 3, OK) as seen,
        sending(seen, protocol, 0.3, capacity=2 * BATCH, linger=LINGER, retry=60) as channel,
    ):
        emit(channel, range(1, BATCH + 1))
        eventually(lambda: seen.times)
        emit(channel, range(BATCH + 1, 2 * BATCH + 1))
        assert settled(channel, 2 * BATCH) == (2 * BATCH, 0, 0)
        assert seen.taken == list(range(1, 2 * BATCH + 1))
        again = [0, 0, 0, BATCH] if fault.hang or fault.drip else [BATCH] * 3
        assert seen.sizes == [BATCH, *again, BATCH]


@pytest.mark.parametrize(
    ("protocol", "fault"),
    [
        (HTTP, Fault(status=429, retry_after=3600)),
        (GRPC, Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=3600)),
    ],
)
def test_a_collector_that_asks_for_silence_gets_it(protocol: str, fault: Fault) -> None:
    """The refused batch has failed. The rest waits, and is dropped unsent when the channel closes."""
    with collector(protocol, fault) as seen, sending(seen, protocol, timeout=1, linger=LINGER) as channel:
        emit(channel, range(1, BATCH + 1))
        assert settled(channel, BATCH) == (0, 0, BATCH)
        sent = len(seen.times)
        emit(channel, range(1, 101))
        assert close(channel, 0.2, BATCH + 100) == (0, 100, BATCH)
        assert len(seen.times) == sent


@BOTH
def test_closing_does_not_wait_for_a_silence(protocol: str) -> None:
    """A batch that waits for the end of the silence that the collector asked for is not sent before it."""
    fault = Fault(status=429, code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=3600)
    with (
        collector(protocol, fault) as seen,
        sending(seen, protocol, timeout=1, linger=LINGER, retry=60) as channel,
    ):
        emit(channel, range(1, BATCH + 1))
        eventually(lambda: seen.times and channel._sender.pause() > 0)
        emit(channel, range(1, 101))
        with within(5):
            assert close(channel, 10, BATCH + 100) == (0, 100, BATCH)
        assert len(seen.times) == 1


@BOTH
def test_connections_that_are_reset(protocol: str) -> None:
    with collector(protocol, Fault(reset=True)) as seen, sending(seen, protocol, timeout=0.5) as channel:
        emit(channel, range(1, 101))
        assert settled(channel, 100) == (0, 0, 100)
        assert seen.times


@BOTH
@pytest.mark.parametrize(("rejected", "taken"), [(7, 93), (100, 0), (101, 0), (1 << 62, 0), (-1, 100)])
def test_a_part_is_rejected(protocol: str, rejected: int, taken: int) -> None:
    with (
        collector(protocol, Fault(rejected=rejected)) as seen,
        sending(seen, protocol, capacity=100, linger=LINGER) as channel,
    ):
        emit(channel, range(1, 101))
        assert settled(channel, 100) == (taken, 0, 100 - taken)
        assert len(seen.times) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(body=b"\xff" * 100),
        Fault(body=b"\xff" * 1_000_000),
        Fault(headers={"content-length": "1000000", "connection": "close"}),
        Fault(headers={"content-encoding": "gzip"}, body=b"no gzip"),
        Fault(headers={"set-cookie": "a=b", "content-type": "application/json"}, body=b"{}"),
    ],
)
def test_a_status_of_success_stands_whatever_follows(fault: Fault) -> None:
    with collector(HTTP, fault) as seen, sending(seen, HTTP) as channel:
        emit(channel, range(1, 101))
        assert settled(channel, 100) == (100, 0, 0)
        assert sorted(seen.taken) == list(range(1, 101))


@BOTH
def test_a_queue_that_is_full(protocol: str) -> None:
    """put() does not wait for a request: while one is unanswered, it drops what does not fit the queue."""
    with (
        collector(protocol, Fault(hang=True)) as seen,
        sending(seen, protocol, timeout=60, capacity=100, linger=LINGER) as channel,
    ):
        emit(channel, range(1, 101))
        eventually(lambda: seen.times)
        emit(channel, range(101, 1001))
        assert channel.counts() == (0, 800, 0)  # 100 are being sent, 100 wait
        assert close(channel, 0.3, 1000) == (0, 900, 100)


@BOTH
@pytest.mark.parametrize("retry", [0, 300])
def test_closing_does_not_wait_for_the_next_attempt(protocol: str, retry: float) -> None:
    with collector(protocol) as seen, sending(seen, protocol, timeout=60, retry=retry) as channel:
        emit(channel, range(1, 1001))
        with within(5):
            assert close(channel, 10, 1000) == (0, 0, 1000)


@BOTH
def test_closing_sends_what_waits(protocol: str) -> None:
    with collector(protocol, OK) as seen, sending(seen, protocol) as channel:
        emit(channel, range(1, 5001))
        assert close(channel, 20, 5000) == (5000, 0, 0)
        assert sorted(seen.taken) == list(range(1, 5001))


@BOTH
def test_one_that_cannot_be_encoded_costs_no_other(protocol: str) -> None:
    with collector(protocol, OK) as seen, connected(seen.endpoint, protocol) as transport:
        made: list[Any] = spans([*range(1, 101)])
        made[41] = "no encoded span"
        assert transport.export(made) == 99
        assert sorted(seen.taken) == [number for number in range(1, 101) if number != 42]


@BOTH
def test_large_batches_go_in_parts_that_servers_accept(protocol: str) -> None:
    with collector(protocol, OK) as seen, connected(seen.endpoint, protocol) as transport:
        made = spans([*range(1, 101)], "x" * 100_000)
        assert transport.export(made) == 100
        assert sorted(seen.taken) == list(range(1, 101))
        assert len(seen.times) > 1


@BOTH
def test_tls_with_certificates_of_both(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    # This variable applies only if no certificate is configured.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", Pair(tmp_path / "other").certificate)
    pair = Pair(tmp_path)
    ours = {"client_certificate": pair.certificate, "client_key": pair.key}
    trusted = {"certificate": pair.certificate}
    with collector(protocol, OK, pair=pair) as seen:
        for files, taken in (
            (trusted | ours, 3),
            (trusted, 0),  # the collector does not trust us
            ({}, 0),  # we do not trust the collector
        ):
            with connected(seen.endpoint, protocol, timeout=1, **files) as transport:
                assert transport.export(spans([1, 2, 3])) == taken
        assert seen.taken == [1, 2, 3]


@pytest.mark.parametrize("netrc", ["machine 127.0.0.1 login root password secret\n", ""])
def test_the_header_that_was_set_is_sent(netrc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "netrc"
    file.write_text(netrc)
    monkeypatch.setenv("NETRC", str(file))
    headers = {"Authorization": "Bearer token"}
    with collector(HTTP, OK) as seen, connected(seen.endpoint, HTTP, headers=headers) as transport:
        assert transport.export([span(1)]) == 1
        assert [sent["authorization"] for sent in seen.headers] == ["Bearer token"]


@BOTH
def test_the_log_has_one_line_for_the_trouble_and_one_for_its_end(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = Fault(status=400, code=grpc.StatusCode.INVALID_ARGUMENT)
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "kprobe_exporter")  # earlier tests may have set it
    with collector(protocol, *[refusal] * 5, OK) as seen:
        with connected(seen.endpoint, protocol) as transport:
            for _ in range(8):
                transport.export([span(1), span(2)])
            transport.close()
        place = seen.endpoint.rpartition("/")[2]
    lines = [r.getMessage() for r in caplog.records if r.name != "asyncio"]
    assert len(lines) == 2
    assert lines[0].startswith(f"2 of 2 traces were not taken by the collector at {place}: ")
    assert "said why" in lines[0]
    assert lines[1] == f"traces are taken again by the collector at {place}"
