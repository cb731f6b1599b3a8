"""`check --live` foretells what `run` chooses, and changes nothing in the kernel."""

import json
import os
from pathlib import Path
from random import Random

import pytest

from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.symbols.functions import Functions
from kprobe_exporter.symbols.lists import Lists
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.kernel_files import running_kernel
from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.dry_runs import compare, look
from tests.support.leftovers import definitions, unchanged
from tests.support.libc import own_libc
from tests.support.system_calls import BLACKLISTED

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = [DEFAULT, *sorted((ROOT / "examples").glob("*.yaml"))]
GROUP = "kprobe_exporter_test"

HARD = f"""
probes:
  - {{name: silent, attach: kprobe:do_sys_open}}
  - {{name: alias, attach: kprobe:sys_getppid}}
  - {{name: unknown, attach: kprobe:no_such_function_at_all}}
  - {{name: misspelt, attach: kprobe:vfs_raed}}
  - {{name: blacklisted, attach: kprobe:{BLACKLISTED}}}
  - {{name: data, attach: kprobe:jiffies}}
  - {{name: offset, attach: kprobe:vfs_mknod+1}}
  - {{name: fallback, attach: ["kprobe:no_such_function_at_all", "kretprobe:vfs_mknod"]}}
  - {{name: away, attach: kprobe:no_such_module:no_such_function_at_all}}
  - {{name: missing, attach: tracepoint:sched:sched_swich}}
  - {{name: optional, attach: tracepoint:sched:sched_swich, optional: true}}
  - {{name: off, attach: tracepoint:sched:sched_process_exec, enabled: false}}
  - {{name: one, attach: tracepoint:sched:sched_process_exec, filter: pid > 0}}
  - {{name: two, attach: tracepoint:sched:sched_process_exec, filter: pid > 1}}
  - {{name: three, attach: tracepoint:sched:sched_process_exec, filter: comm != "sh"}}
  - {{name: filtered, attach: tracepoint:sched:sched_switch, filter: prev_com == "x"}}
  - {{name: register, attach: "uprobe:{own_libc()}:getppid", fetch: {{x: "%zz"}}}}
  - {{name: defined, definition: "p:defined {own_libc()}:0x30000 x=%zz"}}
  - {{name: right, attach: "uprobe:{own_libc()}:getppid", fetch: {{x: "%sp"}}}}
  - {{name: array, attach: tracepoint:tcp:tcp_probe, fetch: {{who: saddr}}}}
"""


def errors(tracefs: Path) -> str:
    """Return the kernel's log of refusals, which would show that a definition was tried."""
    log = tracefs / "error_log"
    return log.read_text() if log.exists() else ""


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_it_foretells_what_run_settles_on(start_agent: StartAgent, tracefs: Path, path: Path) -> None:
    before = definitions(tracefs), errors(tracefs), (tracefs / "set_event").read_text()
    rows = look(path)
    assert (definitions(tracefs), errors(tracefs), (tracefs / "set_event").read_text()) == before
    agent = start_agent(path.read_text())
    metrics = agent.scrape()
    compare(rows, metrics)
    if has("kprobe_events"):
        up = {metrics.value("kprobe_up", **labels) for labels in metrics.labels("kprobe_up")}
        assert up == {1}, agent.output()
    if path == DEFAULT:
        assert look(path) == rows, "an agent that runs makes no difference"


def test_what_is_hard_to_foretell(start_agent: StartAgent, tracefs: Path, tmp_path: Path) -> None:
    path = tmp_path / "hard.yaml"
    path.write_text(HARD)
    rows = look(path)
    print(json.dumps(rows, indent=1))
    agent = start_agent(HARD)
    print(agent.output())
    compare(rows, agent.scrape())
    found = {row["probe"]: row for row in rows}
    assert "'sched_switch'" in " ".join(found["missing"]["why"])
    assert "did you mean 'prev_comm'?" in " ".join(found["filtered"]["why"])
    sure = {name: found[name]["state"] for name in ("register", "defined", "right")}
    assert sure == {"register": "unsure", "defined": "unsure", "right": "up"}
    assert (found["off"]["state"], found["optional"]["state"]) == ("disabled", "absent")
    if not (tracefs / "kprobe_events").exists():
        return
    states = {name: row["state"] for name, row in found.items()}
    assert states["silent"] == states["alias"] == states["fallback"] == states["away"] == "up"
    assert states["unknown"] == states["misspelt"] == states["blacklisted"] == states["data"] == "down"
    assert states["offset"] == "unsure"
    assert "name do_sys_openat2" in " ".join(found["silent"]["why"])
    assert "'vfs_read'" in " ".join(found["misspelt"]["why"])


def test_try_tells_what_run_tells(start_agent: StartAgent, tracefs: Path, tmp_path: Path) -> None:
    path = tmp_path / "hard.yaml"
    path.write_text(HARD)
    with unchanged(tracefs):
        rows = look("--try", path)
    assert "unsure" not in {row["state"] for row in rows}
    agent = start_agent(HARD)
    compare(rows, agent.scrape())
    for row in rows:
        if row["state"] == "down":
            [said] = [line for line in agent.output().splitlines() if f"'{row['probe']}' is down" in line]
            reason = row["why"][-1].replace(f"kprobe_exporter_trace_{os.getpid()}", "kprobe_exporter")
            assert reason in said


@pytest.mark.needs("kprobe_events")
def test_any_symbol(tracefs: Path, files: MountedTracefs, random: Random) -> None:
    """The kernel accepts or refuses any symbol as foretold; each is defined, never enabled, and deleted."""
    symbols = {line.split()[2] for line in Path("/proc/kallsyms").read_text().splitlines()}
    some = random.sample(sorted(symbols), 300)
    functions = Functions(Lists.of(running_kernel(files)), some)
    wrong = []
    answers = {True: 0, False: 0, None: 0}
    for symbol in some:
        foretold = functions.answer("", symbol, 0)
        answers[foretold.can] += 1
        try:
            files.write("kprobe_events", f"p:{GROUP}/any {symbol}\n")
        except OSError as error:
            took = False
            said = str(error)
        else:
            files.write("kprobe_events", f"-:{GROUP}/any\n")
            took, said = True, "taken"
        if foretold.can not in (took, None):
            wrong.append((symbol, foretold, said))
    print(answers)
    assert not wrong
    assert answers[True] > 20
    assert answers[False] > 20
