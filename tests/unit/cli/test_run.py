"""``run`` says at once that it stops."""

import signal
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.cli.run import heed_signals
from kprobe_exporter.service import logs
from kprobe_exporter.service.shutdown import Shutdown


@pytest.fixture
def stop() -> Iterator[Shutdown]:
    """A request to stop that signals make, until the test ends."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    made = Shutdown()
    heed_signals(made)
    yield made
    signal.set_wakeup_fd(-1)
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("level", "lines"), [("info", 1), ("warning", 0)])
def test_the_first_signal_is_answered_at_once(
    stop: Shutdown, capfd: pytest.CaptureFixture[str], level: str, lines: int
) -> None:
    logs.set_up(level, "text")
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert (stop.is_set(), stop.gives_up) == (True, True)
    told = capfd.readouterr().err.splitlines()
    assert [line.partition(" ")[2] for line in told] == ["INFO cli.run: stopping"] * lines


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--session.max-size", "0", "'0' is not a size above 0"),
        ("--session.max-size", "1MB", "1MB is not a size: write it as 512KiB, 1MiB or 2GiB"),
        ("--session.max-duration", "0s", "'0s' is not a time above 0"),
        ("--session.max-tools", "0", "0 is not in the range 1<=x<=16"),
    ],
)
def test_budget_of_sessions_that_cannot_be(option: str, value: str, why: str) -> None:
    result = CliRunner().invoke(main, ["run", option, value])
    assert result.exit_code == 2
    assert why in " ".join(result.output.split()).replace("'1MB'", "1MB")
