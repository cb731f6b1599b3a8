"""Answers of one line, as most are that are not metrics."""

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

NOSNIFF = {"X-Content-Type-Options": "nosniff"}


def line(text: str, status: int = HTTPStatus.OK, headers: Mapping[str, str] = {}) -> Response:
    """A text/plain answer; what is no valid text appears with backslashes."""
    return Response(
        f"{text}\n".encode("utf-8", "backslashreplace"),
        status,
        headers={"Content-Type": "text/plain; charset=utf-8", **NOSNIFF, **headers},
    )
