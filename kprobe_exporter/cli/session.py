"""``session``: asks a running agent to run terminal tools for a while, and shows what they write."""

import base64
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from kprobe_exporter.cli.options import Seconds, tell
from kprobe_exporter.cli.scope import scope_options
from kprobe_exporter.cli.tool import OWN, Tools
from kprobe_exporter.errors import SessionRefused, StartError, UsageError, sentence
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.probing.scope import Scope
from kprobe_exporter.sessions.client import Message, SessionClient
from kprobe_exporter.sessions.protocol import COMMON, DEFAULT_SOCKET, SessionRequest, ToolRequest, Value
from kprobe_exporter.trace.output import Gone, Interrupt, Output, writing
from kprobe_exporter.trace.timeline import NO_TERMINAL, STDOUT
from kprobe_exporter.util.file_access import replaced_whole

if TYPE_CHECKING:
    from kprobe_exporter.sessions.web_client import Login

FOREVER, LOOK = 3600.0, 0.2
"""Seconds of a wait for the agent, and of one for the rest after Ctrl-C, which another Ctrl-C may end."""

HINT = ": 'kprobe-exporter tool' lists them"

NAMES = {"most": "rows", "added": "add"}
"""Parameters of tools whose options have other names."""


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter session --tool execsnoop --for 60s
  kprobe-exporter session --tool execsnoop --tool opensnoop --pod shop/web-1 --for 60s
  kprobe-exporter session --tool 'opensnoop -x' --tool 'biolatency -m -i 5' --json
  kprobe-exporter session --tool biosnoop --perfetto disks.pftrace --for 10s
  kubectl exec POD -- python3 -m kprobe_exporter session --socket PATH --tool tcplife
  kprobe-exporter session --url https://node7:10435 --user ops --password-file FILE --tool tcplife
\b
The agent has to be started with --session.socket PATH:
  kprobe-exporter run --session.socket /run/kprobe_exporter_session/socket
""",
)
@click.option(
    "--tool",
    "tools",
    multiple=True,
    required=True,
    metavar="'NAME [OPTIONS]'",
    help="A terminal tool, with its own options and -n, -i, -T, -s and --add; may be given several times.",
)
@scope_options(without=("command",))
@click.option(
    "--for",
    "seconds",
    type=Seconds(),
    default="60s",
    show_default=True,
    metavar="TIME",
    help="End after so long; the agent has a limit.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: the tool, and its row.")
@click.option(
    "--perfetto",
    "timeline",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Bring back a timeline of one tool for ui.perfetto.dev, instead of rows; - is stdout.",
)
@click.option(
    "--socket",
    "path",
    type=click.Path(path_type=Path),
    default=DEFAULT_SOCKET,
    show_default=True,
    metavar="PATH",
    help="The agent's --session.socket.",
)
@click.option(
    "--url",
    metavar="https://HOST:PORT",
    help="Ask the agent there over HTTPS, if it runs with --web.enable-sessions.",
)
@click.option("--user", default="", metavar="NAME", help="A user of its --web.config.file.")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file with the password, alone; without it, a terminal is asked.",
)
@click.option(
    "--ca-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The certificates of the authorities to trust in, in place of the system's.",
)
@click.option("-v", "--verbose", is_flag=True, help="Say what is attached.")
def session(
    tools: tuple[str, ...],
    scope: Scope,
    seconds: float,
    as_json: bool,
    timeline: Path | None,
    path: Path,
    url: str | None,
    user: str,
    password_file: Path | None,
    ca_file: Path | None,
    verbose: bool,
) -> None:
    """Ask a running agent to run terminal tools for a while, and show what they write.

    The agent runs each tool in an instance of its own, within a budget of tools, seconds and bytes that its
    options --session.* set. The session ends with its time, with this command, however that ends, or
    with the agent, and leaves the kernel as it was. Ctrl-C ends it, and still shows the tables that tools
    make at their end. Only root may ask at the socket.
    """
    given = scope._asdict().items()
    narrowed = {name: value for name, value in given if value != Scope._field_defaults[name]}
    if timeline is not None:
        _check_timeline(timeline, tools, as_json=as_json)
    asked = tuple(map(asked_tool, tools))
    request = SessionRequest(asked, narrowed, seconds, as_json, timeline is not None)
    with ExitStack() as stack:
        agent = path if url is None else _login(url, user, password_file, ca_file)
        stop = stack.enter_context(Interrupt().heeded())
        client = stack.enter_context(_client(agent, request))
        out = Output(sys.stdout.fileno(), stop, terminal=sys.stdout.isatty())
        shown = SessionOutput(out, [tool.name for tool in request.tools], verbose=verbose)
        if timeline is not None:
            shown.draw = stack.enter_context(_written(timeline, out))
        asked_to_end = False
        with suppress(Gone):
            while not stop.gives_up:
                if stop.is_set() and not asked_to_end:
                    asked_to_end = True
                    client.end()
                if not stop.is_set():
                    stop.wait_for([client.descriptor], FOREVER, out.watched)
                if not client.has_some(LOOK if stop.is_set() else 0):
                    continue
                if (messages := client.messages()) is None:
                    break
                for message in messages:
                    shown.show(message)
        if timeline is not None and (shown.failed or not shown.ended):
            raise StartError("the timeline is not complete, so no file is written.")
    if shown.failed and not out.gone:
        sys.exit(1)
    if not shown.ended and not stop.is_set():
        raise SessionRefused("the agent ended without ending the session.")


def _login(url: str, user: str, password_file: Path | None, ca: Path | None) -> "Login":
    """Return how to log in over HTTP. Raises UsageError."""
    from kprobe_exporter.sessions.web_client import Login  # noqa: PLC0415

    if not user:
        raise UsageError("--url takes a --user of the agent's --web.config.file.")
    if password_file is not None:
        return Login(url, user, password_file.read_text().removesuffix("\n"), ca)
    if not sys.stdin.isatty():
        raise UsageError("--url takes a --password-file, where no terminal can be asked.")
    return Login(url, user, click.prompt("Password", hide_input=True, err=True), ca)


def _client(agent: "Path | Login", request: SessionRequest) -> SessionClient:
    if isinstance(agent, Path):
        return SessionClient.at(agent, request)
    # Imported only if needed, as TLS and HTTP take 30 ms.
    from kprobe_exporter.sessions.web_client import WebSessionClient  # noqa: PLC0415

    return WebSessionClient(agent, request)


def _check_timeline(timeline: Path, tools: Sequence[str], *, as_json: bool) -> None:
    if as_json or len(tools) > 1:
        raise UsageError("--perfetto takes one tool, and no --json.")
    if timeline == STDOUT and sys.stdout.isatty():
        raise UsageError(NO_TERMINAL)


@contextmanager
def _written(timeline: Path, out: Output) -> Iterator[Callable[[bytes], object]]:
    """Yield the function that writes pieces of a timeline to a file, or to stdout."""
    if timeline == STDOUT:
        yield out.write_raw
        return
    with ExitStack() as stack:
        with writing(timeline):
            file = stack.enter_context(replaced_whole(timeline, private=True))
        yield writing(timeline)(file.write)
        with writing(timeline):
            stack.pop_all().close()


class SessionOutput:
    """Shows the messages of an agent: rows on stdout, the rest on stderr."""

    def __init__(self, out: Output, tools: list[str], *, verbose: bool) -> None:
        self._out, self._verbose = out, verbose
        self._width = max(map(len, tools)) if len(tools) > 1 else 0
        self.failed = self.ended = False
        self.draw: Callable[[bytes], object] = lambda data: None

    def show(self, message: Message) -> None:
        """Show one message. Raises Gone if stdout has no reader any more."""
        tool = message.get("tool", "")
        if "row" in message:
            self._out.say(json.dumps(message))
        elif "data" in message:
            self.draw(base64.b64decode(message["data"]))
        elif "text" in message:
            begin = f"{tool:<{self._width}} " if self._width else ""
            self._out.write(f"{begin}{message['text']}\n".encode(errors="surrogateescape"))
        elif "traced" in message:
            tell(f"{tool}: traced from now on.")
        elif "status" in message:
            self.failed |= message["status"] != 0
        elif "ended" in message:
            self.ended = True
            self.failed |= message["ended"] in ("budget", "stopped")
            if message["ended"] not in ("done", "left"):
                tell(f"the session was ended: {message['note']}")
        elif self._verbose or message.get("level") not in ("info", "debug"):
            tell(f"{tool}: {message.get('note')}")


def asked_tool(text: str) -> ToolRequest:
    """Return the tool and the options that a value of --tool names. Raises UsageError."""
    try:
        name, *words = shlex.split(text)
    except ValueError:
        raise UsageError(
            f"--tool {text!r}: write a tool's name and its options, quoted as in a shell."
        ) from None
    context = click.Context(click.Command("tool"), info_name="tool")
    command = Tools().get_command(context, name) if name.isidentifier() else None
    if command is None:
        near = closest(name, Tools().list_commands(context))
        raise UsageError(sentence(f"--tool: there is no tool {name!r}{near or HINT}"))
    try:
        made = command.make_context(name, words, parent=context)
    except click.UsageError as error:
        raise UsageError(f"--tool {name}: {error.format_message()}") from None
    options: dict[str, Value] = {}
    for parameter in command.params:
        key = parameter.name or ""
        if made.get_parameter_source(key) is not ParameterSource.COMMANDLINE:
            continue
        known = key.removeprefix(OWN).replace("_", "-") if key.startswith(OWN) else NAMES.get(key, key)
        if not key.startswith(OWN) and known not in COMMON:
            option = max(parameter.opts, key=len)
            raise UsageError(f"--tool {name}: a session does not take {option} of a tool.")
        options[known] = _value(made.params[key])
    return ToolRequest(name, options)


def _value(given: object) -> Value:
    """Return a value of click as the request has it."""
    if given is True:
        return True
    if isinstance(given, tuple):
        return [str(one) for one in given]
    return f"{given:g}" if isinstance(given, float) else str(given)
