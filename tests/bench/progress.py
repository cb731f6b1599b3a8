"""Lines that say what is being measured, apart from the tables."""

import sys
import time

BEGAN = time.monotonic()


def say(what: str) -> None:
    print(f"[{time.monotonic() - BEGAN:4.0f}s] {what}", file=sys.stderr, flush=True)
