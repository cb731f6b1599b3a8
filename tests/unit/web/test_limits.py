"""Which host names a client may ask for."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from kprobe_exporter.errors import UsageError
from kprobe_exporter.web.limits import NOT_ALLOWED, RequestLimits, check_allowed_hosts

ALLOWED = ("agent.example.com", "Node-1.")


def answer(host: str | None, allowed: tuple[str, ...]) -> tuple[int, bytes]:
    """Return the status and the body for a request with this Host header."""
    messages: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"metrics"})

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        raise AssertionError

    headers = [] if host is None else [(b"host", host.encode())]
    asyncio.run(RequestLimits(app, allowed)({"type": "http", "headers": headers}, receive, send))
    return messages[0]["status"], messages[1]["body"]


@pytest.mark.parametrize(
    "host",
    [
        "agent.example.com",
        "AGENT.example.com.:10435",
        "node-1:443",
        "192.0.2.1:10435",
        "[2001:db8::1]:10435",
        "[::1]",
        "localhost:10435",
    ],
)
def test_allowed(host: str) -> None:
    assert answer(host, ALLOWED) == (200, b"metrics")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "agent.example.com.evil.example",
        "evil.example:10435",
        "agent.example.com@evil.example",
        "192.0.2.1.evil.example",
        "",
        None,
        "[",
        "[::1",
        "1",
        "\u0130",
    ],
)
def test_a_name_that_resolves_to_the_agent_is_not_enough(host: str | None) -> None:
    """A page of such a site could otherwise read the metrics through a browser inside the network."""
    assert answer(host, ALLOWED) == (421, NOT_ALLOWED.encode() + b"\n")
    assert answer(host, ()) == (200, b"metrics")


@pytest.mark.parametrize("host", ["", "http://agent", "agent:10435", "a b", "*.example.com", "-a"])
def test_what_is_no_host_name(host: str) -> None:
    with pytest.raises(UsageError, match="write the name alone"):
        check_allowed_hosts([host])
