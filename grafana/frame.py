"""What the dashboards have in common: variables, links between them, rows, places and JSON."""

import json
from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

TAG = "kprobe-exporter"
WIDTH = 24
"""Grafana's columns."""

Panels = Sequence[Sequence[Builder[model.Panel]]]
"""Lines of panels; those of a line share its width, but for those that have their own."""

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")


def build(
    uid: str,
    title: str,
    description: str,
    *,
    probe: str | None,
    rows: dict[str, Panels],
    more: Sequence[Builder[model.VariableModel]] = (),
) -> Any:
    """A dashboard. ``probe``: how many its variable chooses, ``multi`` or ``single``; None: no such.
    ``more`` are further variables.

    The panels' places and ids follow from their order, so that equal sources give equal JSON.
    """
    frame = (
        Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("job", "Job", "kprobe_exporter_build_info", many=True))
        .with_variable(
            _variable("instance", "Instance", 'kprobe_exporter_build_info{job=~"$job"}', many=True)
        )
        .link(_link())
    )
    if probe:
        up = 'kprobe_up{job=~"$job",instance=~"$instance"}'
        frame.with_variable(_variable("probe", "Probe", up, many=probe == "multi"))
    for one in more:
        frame.with_variable(one)
    built = frame.build()
    built.panels = _placed(rows)
    for choice in built.templating.list_val or ():
        # Of intervals only, but the SDK writes them for all, and the schema has no such.
        choice.auto = choice.auto_min = choice.auto_count = None
    return built


def text(dashboard: Any) -> str:
    """The JSON of a built dashboard, the same for the same sources."""
    return json.dumps(dashboard, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _variable(name: str, label: str, series: str, *, many: bool) -> QueryVariable:
    return variable(name, label, f"label_values({series}, {name})", SOURCE, many=many)


def variable(
    name: str, label: str, query: str | dict[str, object], source: model.DataSourceRef, *, many: bool
) -> QueryVariable:
    """A choice of what a query finds: of one value, or of ``many`` or all."""
    found = (
        QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(source)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )
    return found.multi(True).include_all(True).all_value(".+") if many else found


def _link() -> DashboardLink:
    """To the other dashboards, with the same time and variables."""
    return (
        DashboardLink("kprobe_exporter")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .keep_time(True)
        .include_vars(True)
    )


def _placed(rows: dict[str, Panels]) -> list[model.Panel | model.RowPanel]:
    placed: list[model.Panel | model.RowPanel] = []
    y = 0
    for title, lines in rows.items():
        row = Row(title).id(len(placed) + 1).build()
        row.grid_pos = model.GridPos(h=1, w=WIDTH, x=0, y=y)
        placed.append(row)
        y += 1
        for line in lines:
            panels = [panel.build() for panel in line]
            x = 0
            for panel in panels:
                assert panel.grid_pos, "each panel says how high it is"
                height = panel.grid_pos.h
                panel.id_val = len(placed) + 1
                panel.grid_pos = model.GridPos(h=height, w=WIDTH // len(panels), x=x, y=y)
                panel.datasource = panel.datasource or SOURCE
                x += panel.grid_pos.w
                placed.append(panel)
            y += max(panel.grid_pos.h for panel in panels if panel.grid_pos)
    return placed
