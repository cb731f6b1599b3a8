"""`make soak`: the soak in a VM, as long as is wanted, and its figures in docs/reliability.md."""

import argparse
import compileall
import json
import re
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.bench.table import Table
from tests.vm import BUILD, ROOT
from tests.vm.__main__ import PYTHON, execute
from tests.vm.kernels import KERNELS, MAIN, image

DOCUMENT = ROOT / "docs/reliability.md"
TEST = "tests/faults/test_soak.py"
START, END = "<!-- what `make soak` wrote -->", "<!-- the end of the soak -->"
TITLE = "# Reliability\n\nWhat was done to the agent, and what came of it.\n"
SECTION = f"\n## Soak\n\n{START}\n{END}\n"
REST = 15 * 60
"""Seconds for booting, importing and the last counts, beside the soak itself, in a VM on a busy machine."""

ABOUT = (
    "Probes of all kinds; each 5 s some quiet calls and a burst, of which every third is too much for a"
    " ring buffer of 64 KiB, as the agent is stopped meanwhile; a reload each 10 s, which changes some of"
    " the probes and leaves the others alone; a scrape a second after the last one; each 30 s a probe is"
    " disabled and its definition deleted by hand. Emulated (QEMU's TCG, no KVM): the load is many times"
    " lighter than it would be on a real CPU. The agent is forked from the test's process, whose modules"
    " and lists of the kernel's functions are counted in its resident memory."
)


def table(figures: Mapping[str, Any], day: str) -> Table:
    """What one soak measured, one row for each figure."""
    minutes, before, after = (figures[name] for name in ("minutes", "resident_before", "resident_after"))
    told = {reason: count for reason, count in figures["lost"].items() if count}
    rows = (
        ("kernel", figures["kernel"]),
        ("day", day),
        ("minutes", f"{minutes:g}"),
        ("probes", f"{figures['probes']}"),
        ("reloads", f"{figures['reloads']:,}"),
        ("probes deleted by hand", f"{figures['deleted']:,}"),
        ("scrapes", f"{figures['scrapes']:,}"),
        ("the slowest of them, s", f"{figures['slowest_scrape']:.2f}"),
        ("hits", f"{figures['hits']:,.0f}"),
        ("events", f"{figures['events']:,.0f}"),
        ("losses told", ", ".join(f"{reason} {count:,.0f}" for reason, count in told.items()) or "0"),
        (
            "hits of unchanged, recorded probes that are neither event nor told loss",
            f"{figures['missing'] - _recorded(told):,.0f}",
        ),
        (f"resident memory, minutes {minutes / 6:g} to {minutes / 2:g}, MB", f"{before / 1e6:.2f}"),
        (f"resident memory, minutes {2 * minutes / 3:g} to {minutes:g}, MB", f"{after / 1e6:.2f}"),
        ("growth", f"{100 * (after / before - 1):+.2f} %"),
        ("descriptors, at the beginning and at the end", f"{figures['descriptors']}"),
        ("threads, at the beginning and at the end", f"{figures['threads']}"),
        (
            "definitions at the beginning, and the most",
            f"{figures['definitions']}, {figures['most_definitions']}",
        ),
    )
    return Table("Soak", ABOUT, ("", ""), rows)


def merged(document: str, body: str) -> str:
    """The document with this body between the markers; the rest is unchanged."""
    whole = document if START in document else (document or TITLE) + SECTION
    pattern = re.escape(START) + ".*?" + re.escape(END)
    return re.sub(pattern, lambda _: f"{START}\n\n{body}\n\n{END}", whole, count=1, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soaking", description=__doc__)
    parser.add_argument("--kernel", choices=list(KERNELS), default=MAIN.series)
    parser.add_argument("--minutes", type=float, default=30)
    options = parser.parse_args()
    kernel = KERNELS[options.kernel]
    image(kernel)
    for package in ("kprobe_exporter", "tests"):  # the guest cannot write bytecode
        compileall.compile_dir(ROOT / package, quiet=2)
    directory = BUILD / "soak" / kernel.series
    directory.mkdir(parents=True, exist_ok=True)
    result = directory / "figures.json"
    result.unlink(missing_ok=True)
    command = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "--color=no", "-s", TEST]
    command += [f"--minutes={options.minutes}", f"--figures={result}"]
    limit = round(60 * options.minutes) + REST
    status = execute(kernel, command, directory, threading.Event(), limit)
    if status == 0:
        body = table(json.loads(result.read_text()), f"{datetime.now(UTC):%Y-%m-%d}").markdown()
        DOCUMENT.write_text(merged(DOCUMENT.read_text() if DOCUMENT.exists() else "", body))
    return status


def _recorded(told: Mapping[str, float]) -> float:
    """The lost events of unchanged probes: all losses except ``unpaired``, ``disabled`` and ``wiped``."""
    return sum(count for reason, count in told.items() if reason not in ("unpaired", "disabled", "wiped"))


if __name__ == "__main__":
    sys.exit(main())
