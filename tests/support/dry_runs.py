"""What 'check --live' says, compared with what 'run' settles on."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from kprobe_exporter.cli import main
from tests.support.agent_process import Metrics


def look(*arguments: Path | str) -> list[dict[str, Any]]:
    """Return the rows of `check --live`, and assert that its exit status agrees with them."""
    result = CliRunner().invoke(main, ["check", "--live", "--json", *map(str, arguments)])
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    assert result.exit_code == int(any(row["state"] == "down" for row in rows)), result.output
    return rows


def compare(rows: list[dict[str, Any]], metrics: Metrics) -> None:
    """Assert that the agent's metrics show what the rows foretold."""
    info = {labels["probe"]: labels for labels in metrics.labels("kprobe_info")}
    for row in rows:
        found = info.get(row["probe"])
        known = ("kprobe_up", frozenset({("probe", row["probe"])})) in metrics
        assert known == (row["state"] != "absent"), row
        if row["state"] == "unsure":
            continue
        assert (row["state"] == "up") == (found is not None), row
        assert (row["state"] == "up") == bool(metrics.value("kprobe_up", probe=row["probe"])), row
        if found is not None:
            assert {key: row[key] for key in ("probe", "kind", "target", "plan")} == found
