"""Fixtures: an authority, and a server's certificate that it signed."""

import pytest

from tests.support.certificates import Authority, Pair


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def server(authority: Authority) -> Pair:
    return authority.issue("server")
