"""biolatency and runqlat of examples/ tell what bpftrace's tools of those names tell, and what is known beforehand.

Both run at once, over the same load. Two buckets of bpftrace's `hist()` of microseconds and of the
examples are one, but for the bound itself. As they come with Debian 12 neither tool works on its kernels,
so they are mended where their text says so below.
"""

import mmap
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import accumulate, batched
from pathlib import Path

import pytest

from tests.agent_process import AgentProcess, Metrics, eventually
from tests.kernel.conftest import StartAgent

pytestmark = pytest.mark.needs("kprobe_events")
