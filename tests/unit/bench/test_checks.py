"""When a benchmark refuses to show figures."""

import pytest

from tests.bench.checks import Missed, require_all_told, require_up, saw_all

UP = """\
# HELP kprobe_up 1 if the probe is installed and enabled.
kprobe_up{probe="lseek"} 1.0
kprobe_upper_total{probe="lseek"} 0.0
kprobe_exporter_probe_tripped{probe="lseek"} 0.0
"""
TRIP = "WARNING the probe 'lseek' is tripped: it fired 800,000 times a second, and its limit is 100,000"


def test_a_probe_that_missed_calls() -> None:
    saw_all(12, 11)
    saw_all(11, 11)
    with pytest.raises(Missed, match="of 11 calls 10 were seen"):
        saw_all(10, 11)


def test_a_probe_that_is_up() -> None:
    require_up(UP, "INFO the probe 'lseek' is up")


@pytest.mark.parametrize(
    ("metrics", "log", "probes", "sentence"),
    [
        (UP.replace("} 1.0", "} 0.0", 1), "", 1, "these probes are not up: lseek"),
        (UP, "", 2, "of 2 probes 1 are up"),
        ("", "", 1, "of 1 probes 0 are up"),
        (UP.replace('tripped{probe="lseek"} 0', 'tripped{probe="lseek"} 1'), "", 1, "are tripped: lseek"),
        (UP, f"INFO started\n{TRIP}\n", 1, "the probe 'lseek' is tripped: it fired 800,000"),
        (UP, TRIP.replace("tripped", "sampled"), 1, "the probe 'lseek' is sampled"),
    ],
)
def test_a_probe_that_is_not_up_or_exceeded_a_limit(
    metrics: str, log: str, probes: int, sentence: str
) -> None:
    with pytest.raises(Missed, match=sentence):
        require_up(metrics, log, probes)


@pytest.mark.parametrize(("delivered", "lost"), [(100, 0), (90, 10), (90, 12), (0, 100), (100, 3)])
def test_everything_is_told(delivered: int, lost: int) -> None:
    require_all_told(100, delivered, lost)


@pytest.mark.parametrize(
    ("delivered", "lost", "sentence"),
    [
        (0, 0, "of 100 that were made 0 were delivered, and only 0 were told as lost"),
        (90, 9, "of 100 that were made 90 were delivered, and only 9 were told as lost"),
        (101, 0, "101 were delivered of 100 that were made"),
    ],
)
def test_a_loss_that_was_not_told(delivered: int, lost: int, sentence: str) -> None:
    with pytest.raises(Missed, match=sentence):
        require_all_told(100, delivered, lost)
