"""Serving: an agent and the HTTP server in front of it, until told to stop."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kprobe_exporter.agent import Agent
from kprobe_exporter.config.values import Config
from kprobe_exporter.errors import KprobeExporterError, StartError
from kprobe_exporter.export.listen import listen
from kprobe_exporter.export.server import WebServer
from kprobe_exporter.export.web import create_app
from kprobe_exporter.stop import Stop
from kprobe_exporter.tracefs.files import MountedTracefs, Tracefs
from kprobe_exporter.tracefs.leftovers import remove_dead_traces
from kprobe_exporter.tracefs.mount import mounted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says beside the configuration."""

    listen: Sequence[str] = (":10435",)
    telemetry_path: str = "/metrics"
    tracefs: Path | None = None
    fail_fast: bool = False


@contextmanager
def this_kernel(path: Path | None) -> Iterator[Tracefs]:
    """The tracefs of the running kernel, at the path asked for or wherever it is mounted."""
    with mounted(path) as root:
        files = MountedTracefs(root)
        remove_dead_traces(files)
        yield files


def serve(
    config: Config,
    options: Options,
    stop: Stop,
    kernel: Callable[[Path | None], AbstractContextManager[Tracefs]] = this_kernel,
) -> None:
    """Run the agent until ``stop`` is set. Raises KprobeExporterError for what a person can mend.

    The sockets come first: a second agent on the same address must not touch the kernel at all.
    """
    with ExitStack() as stack:
        sockets = listen(options.listen)
        for socket in sockets:
            stack.callback(socket.close)
        files = stack.enter_context(kernel(options.tracefs))
        agent = stack.enter_context(Agent(config, files, stop))
        if options.fail_fast:
            agent.insist()
        app = create_app(agent.snapshot, agent.ready, options.telemetry_path)
        web = WebServer(app, sockets, agent.failed)
        stack.callback(web.close)
        web.start()
        for address in web.addresses:
            log.info("serving metrics at http://%s%s", address, options.telemetry_path)
        stop.wait()
    if agent.error is not None:
        if isinstance(agent.error, KprobeExporterError):
            raise agent.error
        raise StartError(f"a background thread failed: {agent.error!r}.") from agent.error
