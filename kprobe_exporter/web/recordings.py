"""The routes of recordings: their list, their files, and the request to write one now."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

from kprobe_exporter.web.messages import HttpError, Request, Response, line
from kprobe_exporter.web.rendering import Workers

DISABLED = "recordings are not served: start the agent with --web.enable-recordings"

_OF_FILE = {"Content-Type": "application/octet-stream", "Vary": "Accept-Encoding"}


class Recordings(Protocol):
    """The recordings of the agent. ``files`` are names, bytes and times; its methods may wait for a disk."""

    def record(self, name: str | None) -> tuple[bool, str]: ...
    def files(self) -> Sequence[tuple[str, int, float]]: ...
    def read(self, name: str) -> bytes: ...


class RecordingRoutes:
    """Serves the files unless ``served`` is false. Each route has a thread of its own."""

    def __init__(self, recordings: Recordings | None, *, served: bool) -> None:
        self._recordings, self._served = recordings, served
        self._files, self._writer = Workers(1, "recordings"), Workers(1, "record")

    async def record(self, request: Request) -> Response:
        """Write the recordings that `name` names, or all; the answer has a line for each."""
        recordings, name = self._recordings, next(iter(request.parameters("name")), None)
        if recordings is None:
            return line("there are no recordings", HTTPStatus.NOT_FOUND)
        written, text = await self._writer.run(request, lambda: recordings.record(name))
        return line(text, HTTPStatus.OK if written else HTTPStatus.SERVICE_UNAVAILABLE)

    async def list(self, request: Request) -> Response:
        """A line for each file: its name and its bytes, the oldest first."""
        return await self._answered(request, "", None)

    async def file(self, request: Request, name: str) -> Response:
        return await self._answered(request, name, name)

    async def _answered(self, request: Request, key: str, name: str | None) -> Response:
        recordings = self._recordings
        if recordings is None or not self._served:
            return line(DISABLED, HTTPStatus.FORBIDDEN)

        def render(_: object) -> Response:
            try:
                if name is None:
                    return line("\n".join(f"{name} {size}" for name, size, _ in recordings.files()))
                body = recordings.read(name)
            except FileNotFoundError:
                raise HttpError(HTTPStatus.NOT_FOUND, "there is no such recording") from None
            except OSError as error:
                why = f"the recordings cannot be read: {error.strerror}"
                raise HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, why) from None
            return Response(body, _OF_FILE | {"Content-Disposition": f'attachment; filename="{name}"'})

        return await self._files.rendered(request, ("recordings", key), render)
