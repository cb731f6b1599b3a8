"""Running an agent, with the HTTP server in front of it, until a stop is requested."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.agent.agent import Agent
from kprobe_exporter.config.model import Config
from kprobe_exporter.errors import KprobeExporterError, StartError, UsageError
from kprobe_exporter.model.snapshot import Snapshot, summary
from kprobe_exporter.service.sdnotify import Systemd, passed_descriptors
from kprobe_exporter.service.shutdown import Shutdown
from kprobe_exporter.service.watchdog import Watchdog
from kprobe_exporter.sessions.protocol import Limits
from kprobe_exporter.sessions.server import SessionServer
from kprobe_exporter.tracefs.files import MountedTracefs, Tracefs
from kprobe_exporter.tracefs.leftovers import remove_dead_traces
from kprobe_exporter.tracefs.mount import mounted
from kprobe_exporter.web.config.reloader import WebConfigReloader
from kprobe_exporter.web.listen import link, listen
from kprobe_exporter.web.routes import create_app
from kprobe_exporter.web.server import WebServer

log = logging.getLogger(__name__)

NO_SOCKETS = (
    "--web.systemd-socket: systemd passed no socket to this process; start its socket unit, or use"
    " --web.listen-address"
)


class ServeOptions(NamedTuple):
    """The options of the command line that the configuration does not contain."""

    listen: Sequence[str] = (":10435",)
    telemetry_path: str = "/metrics"
    tracefs: Path | None = None
    fail_fast: bool = False
    web_config: Path | None = None
    lifecycle: bool = False
    allowed_hosts: Sequence[str] = ()
    stacks: bool = True
    systemd_socket: bool = False
    """Whether to serve on the sockets that systemd passed, instead of those in ``listen``."""
    recordings: bool = False
    session_socket: Path | None = None
    session_limits: Limits = Limits()
    web_sessions: bool = False


@contextmanager
def this_kernel(path: Path | None) -> Iterator[Tracefs]:
    """Yield the tracefs of the running kernel, at this path, or where it is mounted if that is None."""
    with mounted(path) as root:
        files = MountedTracefs(root)
        remove_dead_traces(files)
        yield files


def serve(
    read: Callable[[], Config],
    options: ServeOptions,
    stop: Shutdown,
    kernel: Callable[[Path | None], AbstractContextManager[Tracefs]] = this_kernel,
) -> None:
    """Run the agent until ``stop`` is set. Raises KprobeExporterError for errors that a user can fix.

    ``read`` reads the configuration, at the start and at each reload. The sockets are opened before the
    kernel is touched: a second agent on the same address must not touch it at all. Requests are answered
    before probes are planned, because the files in which probes are may be slow, or hang.
    """
    config = read()
    with ExitStack() as stack:
        systemd = stack.enter_context(Systemd.of(os.environ, os.getpid()))
        web_config = WebConfigReloader(options.web_config)
        addresses = options.listen
        if options.systemd_socket:
            addresses = [f"fd://{number}" for number in passed_descriptors(os.environ, os.getpid())]
            if not addresses:
                raise UsageError(NO_SOCKETS)
        sockets = listen(addresses)
        for socket in sockets:
            stack.callback(socket.close)
        sessions = None
        if options.session_socket is not None or options.web_sessions:
            sessions = SessionServer(options.session_socket, options.session_limits, options.tracefs)
            stack.callback(sessions.close)
        files = stack.enter_context(kernel(options.tracefs))
        systemd.starting(f"installing {len(config.probes)} probes")
        agent = stack.enter_context(Agent(config, files, stop, sessions.families if sessions else tuple))
        if sessions is not None:
            sessions.start(partial(remove_dead_traces, files))

        def reload() -> str | None:
            systemd.reloading()
            reason = agent.reload(read)
            systemd.ready(_status(agent.snapshot()) if reason is None else f"not reloaded: {reason}")
            return reason

        app = create_app(
            agent.snapshot,
            agent.ready,
            options.telemetry_path,
            reload=reload if options.lifecycle else None,
            settings=web_config.settings,
            allowed_hosts=options.allowed_hosts,
            profile=agent.profile if options.stacks else None,
            recordings=agent.recorder,
            serves_recordings=options.recordings,
            connect=sessions.connect if sessions is not None and options.web_sessions else None,
        )
        web = WebServer(app, sockets, agent.failed, lambda: web_config.settings().tls)
        stack.callback(web.close)
        if sessions is not None:  # before the web server, whose clients are told of it
            stack.callback(sessions.close, lambda: stop.gives_up)
        stack.callback(web_config.close)
        web_config.start()
        web.start()
        agent.start()
        if options.fail_fast:
            agent.require_all_up()
        for address in web.addresses:
            scheme = "https" if web_config.settings().tls else "http"
            host, remark = link(address)
            here, path = f"{scheme}://{host}", options.telemetry_path
            log.info("serving metrics at %s%s and the status page at %s/%s", here, path, here, remark)
        watchdog = Watchdog(systemd, agent.vitals(), lambda: _status(agent.snapshot()))
        stack.callback(watchdog.close)
        watchdog.start()
        while not stop.wait():
            reload()
        systemd.stopping("removing the probes")
    if agent.error is not None:
        if isinstance(agent.error, KprobeExporterError):
            raise agent.error
        raise StartError(f"a background thread failed: {agent.error!r}.") from agent.error


def _status(snapshot: Snapshot) -> str:
    """Return the state of the probes in one line, for systemd."""
    return summary((probe.name, probe.state) for probe in snapshot.probes)
