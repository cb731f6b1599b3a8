"""Deadline: a request is given up when its time is over, whatever it waits for."""

import socket
import threading
from collections.abc import Callable

import pytest

from kprobe_exporter.export.otlp import deadline as module
from kprobe_exporter.export.otlp.deadline import Connections, Deadline
from kprobe_exporter.export.otlp.retry import TIMED_OUT, RequestOutcome
from tests.support.patience import patience

TAKEN = RequestOutcome(True)
SOON = 0.01


def waiting_for(event: threading.Event) -> Callable[[], RequestOutcome]:
    def request() -> RequestOutcome:
        event.wait()
        return TAKEN

    return request


def test_an_outcome_in_time() -> None:
    deadline = Deadline(lambda: pytest.fail("nothing is to be shut down"))
    assert deadline.run(lambda: TAKEN, patience(10)) is TAKEN
    assert not deadline.is_over


def test_any_error_is_an_outcome() -> None:
    def request() -> RequestOutcome:
        raise LookupError("no such name")

    assert Deadline(lambda: None).run(request, patience(10)) == RequestOutcome(False, "no such name")


def test_a_request_that_ends_because_its_connection_is_shut_down() -> None:
    shut = threading.Event()
    deadline = Deadline(shut.set)
    assert deadline.run(waiting_for(shut), SOON) is TAKEN
    assert deadline.is_over


def test_while_a_request_that_was_given_up_has_not_ended_no_other_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The resolution of a name cannot be interrupted."""
    monkeypatch.setattr(module, "GRACE", SOON)
    resolved = threading.Event()
    deadline = Deadline(lambda: None)
    assert deadline.run(waiting_for(resolved), SOON) is TIMED_OUT
    assert deadline.is_over
    assert deadline.run(lambda: pytest.fail("two requests at once"), SOON) is TIMED_OUT
    resolved.set()
    assert deadline.run(lambda: TAKEN, patience(10)) is TAKEN
    assert not deadline.is_over


def test_connections_are_shut_down_open_or_not() -> None:
    class Connection:
        def __init__(self, sock: socket.socket | None) -> None:
            self.sock = sock

    connections = Connections()
    ours, theirs = socket.socketpair()
    closed = socket.socket()
    closed.close()
    made = [Connection(None), Connection(closed), Connection(ours)]
    connections._made.update(made)
    with ours, theirs:
        connections.shut_down()
        assert theirs.recv(1) == b""
        connections.shut_down()


def test_one_thread_runs_all_requests_until_it_is_closed() -> None:
    deadline, threads = Deadline(lambda: None), []

    def request() -> RequestOutcome:
        threads.append(threading.current_thread())
        return RequestOutcome(True, "")

    for _ in range(3):
        assert deadline.run(request, patience(10)).taken
    assert len(set(threads)) == 1
    deadline.close()
    threads[0].join(patience(10))
    assert not threads[0].is_alive()
