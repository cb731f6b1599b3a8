"""A whole agent on a fake kernel that plays back what real kernels wrote."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from kprobe_exporter.agent.serve import ServeOptions, serve
from kprobe_exporter.cli.run import heed_signals
from kprobe_exporter.config.load import load
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.service import logs
from kprobe_exporter.service.shutdown import Shutdown
from kprobe_exporter.tracefs.files import Tracefs
from tests.support.agent_process import AgentProcess, running
from tests.support.browser import chromium
from tests.support.fake_tracefs import FakeTracefs

FIXTURES = Path(__file__).parent.parent / "fixtures"

PlayBack = Callable[..., AgentProcess]


class Playback(FakeTracefs):
    """Puts captured text into the agent's trace_pipe when the text's event is enabled."""

    def __init__(self, root: Path, texts: dict[str, bytes], symbols: set[str]) -> None:
        super().__init__(root, symbols)
        self.texts = texts

    def write(self, path: str, text: str) -> None:
        super().write(path, text)
        enabled = re.fullmatch(r"instances/(\w+)/events/\1/(\w+)/enable", path)
        # Once: an agent that finds a probe disabled, as one in the midst of a start may, enables it again.
        if enabled and text == "1" and enabled[2] in self.texts:
            self.feed(enabled[1], self.texts.pop(enabled[2]))


def agent_on(
    directory: Path, config: Path, texts: Callable[[], dict[str, bytes]], options: ServeOptions
) -> AgentProcess:
    """Start an agent on a fake kernel below the directory, which records these texts by their events."""

    def main(_: list[str]) -> None:
        logs.set_up("info", "text")
        stop = Shutdown()
        heed_signals(stop)

        @contextmanager
        def kernel(_: Path | None) -> Iterator[Tracefs]:
            root = directory / "tracefs"
            root.mkdir()
            yield Playback(root, texts(), {"do_sys_openat2"})

        serve(lambda: load([config], DECODERS), options, stop, kernel)

    return AgentProcess(directory / "agent.log", main, [])


@pytest.fixture
def play_back(tmp_path: Path) -> Iterator[PlayBack]:
    """Yield a function that starts an agent on captured streams: ``play_back(config, {event: file, …})``."""
    with ExitStack() as stack:

        def start(config: str, streams: dict[str, Path], listen: str = "127.0.0.1:0") -> AgentProcess:
            path = tmp_path / "config.yaml"
            path.write_text(config)
            path.chmod(0o600)

            def texts() -> dict[str, bytes]:
                return {event: file.read_bytes() for event, file in streams.items()}

            agent = agent_on(tmp_path, path, texts, ServeOptions(listen=[listen]))
            stack.enter_context(running(agent))
            agent.wait_until_serving()
            return agent

        yield start


@pytest.fixture
def browser(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Chrome]:
    """Headless Chromium; the parameter "no scripts" switches JavaScript off."""
    with chromium(tmp_path, scripts=getattr(request, "param", "") != "no scripts") as driver:
        yield driver
