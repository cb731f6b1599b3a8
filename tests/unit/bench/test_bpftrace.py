"""What bpftrace printed at its end, added up, and a probe that missed calls."""

import pytest

from tests.bench.bpftrace import Missed, counted, saw_all

HIST = """\
stdin:1:1-25: WARNING: __x64_sys_getppid is not traceable
kprobe:f { @s[tid] = nsecs; } END { clear(@s); }
Attaching 3 probes...
live


@:
[512, 1K)             52 |@@                                                  |
[1K, 2K)             994 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[1M, 2M)               1 |                                                    |

"""


@pytest.mark.parametrize(
    ("output", "calls"), [("Attaching 1 probe...\n\n@: 300123\n", 300123), (HIST, 1047), ("", 0)]
)
def test_all_that_was_counted(output: str, calls: int) -> None:
    assert counted(output) == calls


def test_a_probe_that_missed_calls() -> None:
    saw_all(12, 11)
    saw_all(11, 11)
    with pytest.raises(Missed, match="of 11 calls 10 were seen"):
        saw_all(10, 11)
