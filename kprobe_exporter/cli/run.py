"""``run``: runs the agent in the foreground."""

import logging
import signal
import sys
from pathlib import Path
from typing import Any

import click

from kprobe_exporter.agent.serve import ServeOptions, serve
from kprobe_exporter.cli import WRONG_USAGE
from kprobe_exporter.cli.options import Level, Seconds, config_option, tracefs_option
from kprobe_exporter.config.fields import size
from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Config
from kprobe_exporter.errors import ConfigError, KprobeExporterError, UsageError
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.service import logs
from kprobe_exporter.service.shutdown import Shutdown
from kprobe_exporter.sessions.protocol import Limits

log = logging.getLogger(__name__)


class Size(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 only
    """A size above 0 in bytes: ``65536``, ``512KiB``, ``64MiB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes. Raises click.BadParameter."""
        if isinstance(value, int):
            return value
        try:
            found = int(str(size(str(value))))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not found:
            self.fail(f"{value!r} is not a size above 0", param, ctx)
        return found


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter run
  kprobe-exporter run --config /etc/kprobe_exporter/ --web.listen-address 127.0.0.1:10435
""",
)
@config_option("Configuration; several combine. Without one the packaged default.yaml.")
@click.option(
    "--web.listen-address",
    "addresses",
    multiple=True,
    default=[":10435"],
    show_default=True,
    metavar="ADDRESS",
    help="[HOST]:PORT to serve on, unix:/PATH of a socket, or fd://NUMBER of an inherited one; may be given"
    " more than once.",
)
@click.option(
    "--web.systemd-socket",
    "systemd_socket",
    is_flag=True,
    help="Serve on the sockets of a systemd socket unit instead.",
)
@click.option(
    "--web.telemetry-path",
    "telemetry_path",
    default="/metrics",
    show_default=True,
    metavar="PATH",
    help="Path of the metrics.",
)
@click.option(
    "--web.config.file",
    "web_config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TLS, passwords and headers, in the format of Prometheus' exporters; read again on change.",
)
@click.option(
    "--web.enable-lifecycle",
    "lifecycle",
    is_flag=True,
    help="Let POST /-/reload read the configuration again, and POST /-/record write recordings; SIGHUP and"
    " SIGUSR1 always do.",
)
@click.option(
    "--web.allowed-hosts",
    "allowed_hosts",
    multiple=True,
    metavar="HOST",
    help="Refuse requests for other host names, against web pages whose name resolves to the agent; may be"
    " given more than once. Addresses and localhost are always allowed. By default every name is.",
)
@click.option(
    "--web.disable-stacks",
    "without_stacks",
    is_flag=True,
    help="Serve no flame graphs and profiles, which show more of the kernel than metrics do.",
)
@click.option(
    "--web.enable-recordings",
    "recordings",
    is_flag=True,
    help="Serve the files of recordings, which show what all programs do, and addresses of the kernel.",
)
@click.option(
    "--web.enable-sessions",
    "web_sessions",
    is_flag=True,
    help="Let clients with TLS and a password ask for terminal tools, by 'kprobe-exporter session --url'."
    " They see what all programs do.",
)
@click.option(
    "--session.socket",
    "session_socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Let root ask for terminal tools at this Unix socket, by 'kprobe-exporter session'. A missing"
    " directory is made, for root alone.",
)
@click.option(
    "--session.max-tools",
    "max_tools",
    type=click.IntRange(1, 16),
    default=Limits().max_tools,
    show_default=True,
    metavar="NUMBER",
    help="Tools of all sessions at once; each is a process of about 50 MB.",
)
@click.option(
    "--session.max-duration",
    "max_seconds",
    type=Seconds(),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="The longest session.",
)
@click.option(
    "--session.max-size",
    "max_bytes",
    type=Size(),
    default="64MiB",
    show_default=True,
    metavar="SIZE",
    help="The output of a session's tools at which it is ended.",
)
@tracefs_option
@click.option(
    "--fail-fast", is_flag=True, help="Exit 1 if a probe cannot be installed, unless it is optional."
)
@click.option("--log.level", "level", type=Level(), default="info", show_default=True)
@click.option("--log.format", "form", type=click.Choice(logs.FORMATS), default="text", show_default=True)
def run(
    paths: tuple[Path, ...],
    addresses: tuple[str, ...],
    systemd_socket: bool,
    telemetry_path: str,
    web_config: Path | None,
    lifecycle: bool,
    allowed_hosts: tuple[str, ...],
    without_stacks: bool,
    recordings: bool,
    web_sessions: bool,
    session_socket: Path | None,
    max_tools: int,
    max_seconds: float,
    max_bytes: int,
    tracefs: Path | None,
    fail_fast: bool,
    level: str,
    form: str,
) -> None:
    """Run the agent until SIGTERM or Ctrl-C, then leave the kernel as it was."""
    stop = Shutdown()
    heed_signals(stop)
    logs.set_up(level, form)

    def read() -> Config:
        config = load(paths or [DEFAULT], DECODERS)
        for warning in config.warnings:
            log.warning("%s", warning)
        return config

    options = ServeOptions(
        addresses,
        telemetry_path,
        tracefs,
        fail_fast,
        web_config,
        lifecycle,
        allowed_hosts,
        stacks=not without_stacks,
        systemd_socket=systemd_socket,
        recordings=recordings,
        session_socket=session_socket,
        session_limits=Limits(max_tools, max_seconds, max_bytes),
        web_sessions=web_sessions,
    )
    try:
        serve(read, options, stop)
    except KprobeExporterError as error:
        if form == "text":
            raise
        for line in str(error).splitlines():
            log.error("%s", line)
        sys.exit(WRONG_USAGE if isinstance(error, ConfigError | UsageError) else 1)
    logs.sum_up()
    log.info("stopped")


def heed_signals(stop: Shutdown) -> None:
    """Have the first SIGTERM or SIGINT request an orderly stop, the second a quick one, SIGHUP a reload, and
    SIGUSR1 a recording.

    The handlers only set a flag and say so, so that they interrupt no step of a start halfway. One signal
    may interrupt the handler of another.
    """

    def request_stop(*_: object) -> None:
        if not stop.is_set():
            logs.write_now(log, "stopping")
        stop.signal()

    signal.set_wakeup_fd(stop.wake_up_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
    signal.signal(signal.SIGHUP, lambda *_: stop.ask_reload())
    signal.signal(signal.SIGUSR1, lambda *_: stop.ask_recording())
