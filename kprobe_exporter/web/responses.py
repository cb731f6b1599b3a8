"""One-line text responses, which most endpoints except the metrics return."""

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

NOSNIFF = {"X-Content-Type-Options": "nosniff"}


def line(text: str, status: int = HTTPStatus.OK, headers: Mapping[str, str] = {}) -> Response:
    """Return a text/plain response; characters that UTF-8 cannot encode become backslash escapes."""
    return Response(
        f"{text}\n".encode("utf-8", "backslashreplace"),
        status,
        headers={"Content-Type": "text/plain; charset=utf-8", **NOSNIFF, **headers},
    )
