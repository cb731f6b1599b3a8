"""The routes of recordings over a real server: the list, the files, the request, and what is refused."""

from collections.abc import Iterator

import pytest

from kprobe_exporter.web.routes import create_app
from tests.support.web_target import Served, serving
from tests.unit.export.conftest import SNAPSHOT

FILE = "slow-20261130T120000.000Z.dat"


class Recordings(Served):
    """A server of one recording."""

    def __init__(self, *, served: bool = True, lifecycle: bool = True) -> None:
        self.asked: list[str | None] = []
        self.error: OSError | None = None
        reload = (lambda: None) if lifecycle else None
        app = create_app(
            lambda: SNAPSHOT, lambda: None, reload=reload, recordings=self, serves_recordings=served
        )
        super().__init__(app)

    def record(self, name: str | None) -> tuple[bool, str]:
        self.asked.append(name)
        return name != "other", f"{name}: wrote"

    def files(self) -> list[tuple[str, int, float]]:
        if self.error:
            raise self.error
        return [(FILE, 9, 1.0)]

    def read(self, name: str) -> bytes:
        if name != FILE:
            raise FileNotFoundError(name)
        return b"\x17\x08\x44 bytes"


@pytest.fixture(scope="module")
def server() -> Iterator[Recordings]:
    with serving(Recordings()) as served:
        yield served


def test_the_list_and_a_file(server: Recordings) -> None:
    response, body = server.ask("/recordings")
    assert (response.status, body) == (200, f"{FILE} 9\n".encode())
    response, body = server.ask(f"/recordings/{FILE}")
    assert (response.status, body) == (200, b"\x17\x08\x44 bytes")
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert response.headers["Content-Disposition"] == f'attachment; filename="{FILE}"'


@pytest.mark.parametrize("path", ["/recordings/", "/recordings/../etc/passwd", "/recordings/a%2Fb"])
def test_other_files_are_not_found(server: Recordings, path: str) -> None:
    response, body = server.ask(path)
    assert (response.status, body) == (404, b"there is no such recording\n")


def test_a_request_writes_one_or_all(server: Recordings) -> None:
    server.asked.clear()
    response, body = server.ask("/-/record", "POST")
    assert (response.status, body) == (200, b"None: wrote\n")
    response, _ = server.ask("/-/record?name=slow", "POST")
    assert response.status == 200
    response, _ = server.ask("/-/record?name=other", "POST")
    assert response.status == 503
    assert server.asked == [None, "slow", "other"]
    response, _ = server.ask("/-/record")
    assert (response.status, response.headers["Allow"]) == (405, "POST")


def test_a_web_page_may_not_ask(server: Recordings) -> None:
    server.asked.clear()
    response, _ = server.ask("/-/record", "POST", Origin="http://localhost")
    assert (response.status, server.asked) == (403, [])


def test_a_directory_that_cannot_be_read(server: Recordings) -> None:
    server.error = PermissionError(13, "Permission denied")
    response, body = server.ask("/recordings")
    server.error = None
    assert (response.status, body) == (500, b"the recordings cannot be read: Permission denied\n")


def test_each_is_off_by_default() -> None:
    with serving(Recordings(served=False, lifecycle=False)) as server:
        for path in ("/recordings", f"/recordings/{FILE}"):
            response, body = server.ask(path)
            assert (response.status, body[:30]) == (403, b"recordings are not served: sta")
        response, _ = server.ask("/-/record", "POST")
        assert (response.status, server.asked) == (403, [])
