"""The sorts of panels that the dashboards are made of, each with the look that is the same everywhere."""

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.models import common as look
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, DynamicConfigValue
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.queries import Query

TO_PROBE = (
    "/d/kprobe-exporter-probe?var-probe=${{{probe}}}&${{datasource:queryparam}}&${{job:queryparam}}"
    "&${{instance:queryparam}}&${{__url_time_range}}"
)
"""The address of the dashboard of one probe; ``probe`` is where Grafana finds its name."""

GREEN, YELLOW, RED = "green", "yellow", "red"


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    minimum: float | None = 0,
    stacked: bool = False,
    logarithmic: bool = False,
    to_probe: bool = False,
) -> timeseries.Panel:
    """Lines over time. ``to_probe``: each links to the dashboard of the probe that its label names."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .height(8)
        .line_width(1)
        .fill_opacity(25 if stacked else 8)
        .show_points(look.VisibilityMode.AUTO)
        .legend(
            common.VizLegendOptions()
            .display_mode(look.LegendDisplayMode.TABLE)
            .placement(look.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
            .sort_by("Max")
            .sort_desc(True)
        )
        .tooltip(
            common.VizTooltipOptions().mode(look.TooltipDisplayMode.MULTI).sort(look.SortOrder.DESCENDING)
        )
        .targets([_over_time(number, query) for number, query in enumerate(queries)])
    )
    if minimum is not None:
        panel.min(minimum)
    if stacked:
        panel.stacking(common.StackingConfig().mode(look.StackingMode.NORMAL))
    if logarithmic:
        panel.scale_distribution(common.ScaleDistributionConfig().type(look.ScaleDistribution.LOG).log(10))
    if to_probe:
        panel.override_by_regexp(".*", [_link("__field.labels.probe")])
    return panel


def number(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    limits: Mapping[float, str] | None = None,
    below: str = GREEN,
    names: Mapping[str, str] | None = None,
) -> stat.Panel:
    """The number of this moment. ``limits`` are the values from which it has another colour than ``below``;
    ``names`` are words for values."""
    steps = [model.Threshold(None, below)]
    steps += [model.Threshold(value, colour) for value, colour in sorted((limits or {}).items())]
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .height(4)
        .color_mode(look.BigValueColorMode.VALUE)
        .graph_mode(look.BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(""))
        .thresholds(ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(_now(0, query))
    )
    if names:
        results = {value: model.ValueMappingResult(text=word) for value, word in names.items()}
        panel.mappings([model.ValueMap(results)])
    return panel


def buckets(title: str, description: str, unit: str, query: Query) -> heatmap.Panel:
    """A histogram over time, with the exemplars of its buckets."""
    target = _over_time(0, query).format(PromQueryFormat.HEATMAP).exemplar(True)
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .height(9)
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .exemplars_color("rgba(50,116,217,0.9)")
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(look.AxisPlacement.LEFT))
        .cell_values(heatmap.CellValues().unit("short"))
        .unit("short")
        .show_legend()
        .mode(look.TooltipDisplayMode.SINGLE)
        .show_y_histogram()
        .with_target(target)
    )


def rows(
    title: str,
    description: str,
    columns: Sequence[tuple[str, str, str]],
    labels: Mapping[str, str],
    *,
    alarming: str | None = None,
) -> table.Panel:
    """A row for each label set of this moment.

    ``columns`` are (heading, unit, PromQL), where no heading means that only the labels are shown; ``labels``
    are their headings in order. The heading ``alarming`` is red from 1 on.
    """
    letters = [chr(ord("A") + place) for place in range(len(columns))]
    value = dict(zip(letters, columns, strict=True))
    # A table of one query calls its value "Value", others by their letters.
    fields = {letter: "Value" if len(columns) == 1 else f"Value #{letter}" for letter in letters}
    shown = {fields[letter]: heading for letter, (heading, _, _) in value.items() if heading}
    hidden = {fields[letter]: True for letter, (heading, _, _) in value.items() if not heading}
    organize = {
        "excludeByName": {"Time": True, **hidden},
        "indexByName": {name: place for place, name in enumerate((*labels, *shown))},
        "renameByName": {**labels, **shown},
    }
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .unit("short")
        .height(9)
        .cell_height(look.TableCellHeight.SM)
        .align(look.FieldTextAlignment.AUTO)
        .inspect(False)
        .cell_options(look.TableAutoCellOptions())
        .targets([_now(place, Query(expr), in_table=True) for place, (_, _, expr) in enumerate(columns)])
        .transformations(
            [
                DataTransformerConfig(id_val="merge", options={}),
                DataTransformerConfig(id_val="organize", options=organize),
            ]
        )
    )
    for heading, unit, _ in columns:
        if heading:
            panel.override_by_name(heading, [DynamicConfigValue("unit", unit)])
    if alarming:
        steps = [{"color": "text", "value": None}, {"color": RED, "value": 1}]
        alarm = [
            DynamicConfigValue("thresholds", {"mode": "absolute", "steps": steps}),
            DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
        ]
        panel.override_by_name(alarming, alarm)
    if "probe" in labels:
        panel.override_by_name(labels["probe"], [_link(f'__data.fields["{labels["probe"]}"]')])
    return panel


def _over_time(place: int, query: Query) -> prometheus.Dataquery:
    return _target(place, query).range()


def _now(place: int, query: Query, *, in_table: bool = False) -> prometheus.Dataquery:
    form = PromQueryFormat.TABLE if in_table else PromQueryFormat.TIME_SERIES
    return _target(place, query).instant().format(form)


def _target(place: int, query: Query) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .ref_id(chr(ord("A") + place))
        .expr(query.expr)
        .legend_format(query.legend or "__auto")
    )


def to_agent(title: str, path: str) -> DynamicConfigValue:
    """What makes each name in a table's column "Agent" a link to a page of this agent."""
    url = f'http://${{__data.fields["Agent"]}}/{path}'
    return DynamicConfigValue("links", [{"title": title, "url": url, "targetBlank": True}])


def _link(probe: str) -> DynamicConfigValue:
    return DynamicConfigValue("links", [{"title": "This probe", "url": TO_PROBE.format(probe=probe)}])
