"""Each start that /etc/default/kprobe_exporter suggests works, with TLS and a password as documented."""

import base64
import re
import shlex
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import bcrypt
import pytest
from click.testing import CliRunner

from kprobe_exporter.agent.serve import ServeOptions
from kprobe_exporter.cli import run as command
from kprobe_exporter.config.model import Config
from kprobe_exporter.service.shutdown import Shutdown
from tests.e2e.conftest import agent_on
from tests.support.agent_process import running
from tests.support.certificates import Authority
from tests.support.patience import patience

ROOT = Path(__file__).parents[2]
SUGGESTED = re.findall(
    r'^#?OPTIONS="(.*)"$', (ROOT / "deploy/systemd/kprobe_exporter.default").read_text(), re.MULTILINE
)
ETC = "/etc/kprobe_exporter"


def write_web_config(file: Path) -> ssl.SSLContext:
    """Write the web configuration that docs/operating.md shows, and return the context of a client."""
    file.parent.mkdir(exist_ok=True)
    authority = Authority(file.parent)
    authority.issue("server")
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    shown = re.findall(
        r"^(?:tls_server_config|basic_auth_users): .*$",
        (ROOT / "docs/operating.md").read_text(),
        re.MULTILINE,
    )
    assert len(shown) == 2
    file.write_text("\n".join(shown).replace("$2b$10$…", hashed))
    file.chmod(0o600)
    return ssl.create_default_context(cafile=authority.certificate)


@pytest.mark.parametrize("suggested", SUGGESTED)
def test_a_suggested_start_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suggested: str) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "probes.yaml").write_text("probes: [{name: open, attach: 'kprobe:do_sys_openat2'}]")
    (etc / "probes.yaml").chmod(0o600)
    given: list[ServeOptions] = []

    def serve(read: Callable[[], Config], options: ServeOptions, _: Shutdown) -> None:
        read()
        given.append(options)

    monkeypatch.setattr(command, "heed_signals", lambda stop: None)
    monkeypatch.setattr(command, "serve", serve)
    words = shlex.split(suggested.replace(ETC, str(etc)))
    web = words[words.index("--web.config.file") + 1] if "--web.config.file" in words else None
    context = write_web_config(Path(web)) if web else None
    result = CliRunner().invoke(command.run, words)
    assert result.exception is None, result.output
    [options] = given
    options = options._replace(listen=["127.0.0.1:0"], systemd_socket=False)
    with running(agent_on(tmp_path, etc, dict, options)) as agent:
        agent.wait_until_serving()
        request = urllib.request.Request(f"{agent.address}/metrics")
        if web:
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(request, timeout=patience(10), context=context)
            password = base64.b64encode(b"scraper:secret").decode()
            request.add_header("Authorization", f"Basic {password}")
        with urllib.request.urlopen(request, timeout=patience(10), context=context) as answer:
            assert b'kprobe_up{probe="open"} 1' in answer.read()
