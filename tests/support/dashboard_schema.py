"""JSON Schemas of dashboards and of each type of panel, generated from the types that Grafana publishes.

Grafana's schema of a dashboard leaves a panel's ``options`` and ``custom`` open, since plugins define them.
They have schemas of their own here.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import npm
from tests.vm.debian import PackageError

SOURCE = Path(__file__).parents[1] / "grafana_schema"
RAW = "node_modules/@grafana/schema/dist/esm/raw"
PLUGINS = {"heatmap": "Heatmap", "stat": "Stat", "table": "Table", "timeseries": "TimeSeries"}
"""The panels that have a schema, and the prefix of the file that declares their types."""
PYROSCOPE = ("grafanapyroscope", "GrafanaPyroscopeDataQuery")
"""The schema of a query to Pyroscope."""

Parts = dict[tuple[str, str], list[Any]]
"""The values to validate, by schema: (plugin, type), see ``parts``."""


def schema(plugin: str, kind: str) -> Path:
    """Return the file of a schema, generated at the first call. Raises PackageError.

    The ``kind`` is ``Dashboard`` for the plugin ``dashboard``, and ``Options`` or ``FieldConfig`` otherwise.
    """
    installed = npm.install(SOURCE)
    made = installed / f"{plugin}.{kind}.json"
    if not made.exists():
        made.write_text(_generate(installed, plugin, kind))
    return made


def _generate(installed: Path, plugin: str, kind: str) -> str:
    if plugin == "dashboard":
        types = f"{RAW}/dashboard/x/dashboard_types.gen.d.ts"
    elif (plugin, kind) == PYROSCOPE:
        types = f"{RAW}/composable/{plugin}/dataquery/x/GrafanaPyroscopeDataQuery_types.gen.d.ts"
    else:
        types = f"{RAW}/composable/{plugin}/panelcfg/x/{PLUGINS[plugin]}PanelCfg_types.gen.d.ts"
    command = ["node_modules/.bin/ts-json-schema-generator", "--no-type-check"]
    try:
        run = subprocess.run(
            [*command, "--path", types, "--type", kind],
            cwd=installed,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise PackageError(f"no JSON Schema of {plugin} {kind}: {error}") from None
    assert json.loads(run.stdout)["definitions"][kind]["additionalProperties"] is False
    return run.stdout


def parts(dashboard: Any) -> Parts:
    """Return the dashboard and those values in its panels that their plugins define."""
    found: Parts = {("dashboard", "Dashboard"): [dashboard]}
    for panel in panels(dashboard):
        config = panel["fieldConfig"]
        if panel["datasource"]["type"] != "prometheus":
            found.setdefault(PYROSCOPE, []).extend(panel["targets"])
        if panel["type"] == "flamegraph":  # Grafana publishes no types of it; ours has neither of these
            assert not panel.get("options")
            assert "custom" not in config["defaults"]
            continue
        found.setdefault((panel["type"], "Options"), []).append(panel["options"])
        custom = config["defaults"].get("custom", {})
        overridden = [
            {of["id"].removeprefix("custom."): of["value"]}
            for override in config["overrides"]
            for of in override["properties"]
            if of["id"].startswith("custom.")
        ]
        configs = [custom] * bool(custom) + [{**custom, **one} for one in overridden]
        if configs:
            found.setdefault((panel["type"], "FieldConfig"), []).extend(configs)
    return found


def asked(expr: str, probe: str = ".+", interval: str = "60s") -> str:
    """A query as Grafana sends it, with its variables replaced."""
    values = {"$job": ".+", "$instance": ".+", "$probe": probe, "$__rate_interval": interval}
    for name, value in values.items():
        expr = expr.replace(name, value)
    return expr


def queries(dashboard: Any) -> list[Any]:
    """The queries to Prometheus of all panels."""
    asking = (panel for panel in panels(dashboard) if panel["datasource"]["type"] == "prometheus")
    return [target for panel in asking for target in panel["targets"]]


def panels(dashboard: Any) -> Iterator[Any]:
    """All panels except the rows."""
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")
