"""What bpftrace printed at its end, added up."""

import pytest

from tests.bench.bpftrace import counted

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
