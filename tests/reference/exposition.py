"""The metrics of a whole agent, on a kernel in memory, with everything that has metrics of its own."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import Mock, patch

from prometheus_client.parser import text_string_to_metric_families

from kprobe_exporter.agent import otlp
from kprobe_exporter.agent.agent import Agent
from kprobe_exporter.config.load import load
from kprobe_exporter.export.prometheus import Exposition
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.service.shutdown import Shutdown
from kprobe_exporter.sessions.protocol import Limits
from kprobe_exporter.sessions.server import SessionServer
from tests.support.fake_tracefs import FakeTracefs

CONFIG = """
otlp: {endpoint: "http://127.0.0.1:4318", metrics: {interval: 60s}}
record: {directory: "DIRECTORY/files", recordings: [{name: slow, probes: [open]}]}
probes:
  - {name: open, attach: "kretprobe:do_open", worst: {by: return}}
  - {name: read, attach: "call:do_read", export: span, fetch: {size: "$arg3:u64"}, outstanding: {weigh: size},
     worst: {by: duration}}
"""

CLIENT = ("process_", "python_")
"""What the Prometheus client adds."""


class Described(NamedTuple):
    """A family, without its samples; a counter's name has its ``_total``."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


@contextmanager
def agent() -> Iterator[Agent]:
    """One that runs; its collector takes everything."""
    collector = Mock(export=len, pause=float)
    with TemporaryDirectory() as directory, patch.object(otlp, "connect", lambda *_: collector):
        config = Path(directory) / "config.yaml"
        config.write_text(CONFIG.replace("DIRECTORY", directory))
        config.chmod(0o600)
        files = FakeTracefs(Path(directory), {"do_open", "do_read"})
        sessions = SessionServer(Path(directory) / "sessions/socket", Limits(), None)
        with closing(sessions), Agent(load([config], DECODERS), files, Shutdown(), sessions.families) as made:
            made.start()
            yield made


def families() -> list[Described]:
    """All metrics of ours, in the order in which they are shown."""
    with agent() as made:
        text = exposed(made)
        labels = {family.name: family.labels for family in made.snapshot().families}
    found = []
    for metric in text_string_to_metric_families(text):
        if not metric.name.startswith(CLIENT):
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            found.append(Described(name, metric.type, labels.get(name, ()), metric.documentation))
    return found


def exposed(made: Agent) -> str:
    """What a scraper reads."""
    return Exposition(made.snapshot).render()[0].decode()
