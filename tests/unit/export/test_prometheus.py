"""What scrapers get, checked against golden text, with two parsers and with promtool."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kprobe_exporter.errors import one_line
from kprobe_exporter.export.prometheus import CONTENT_TYPES, Exposition, Format, accepted, accepts_gzip
from kprobe_exporter.model.snapshot import Family, HistogramValue, Snapshot, exemplar_of_span
from tests.support.client_model import TYPES, read
from tests.support.promtool import check_metrics
from tests.unit.export.conftest import HOSTILE, SNAPSHOT

# The client library has no type annotations for this function.
parse_openmetrics: Callable[[str], Iterable[Metric]] = openmetrics_parser.text_string_to_metric_families

OPENMETRICS = "application/openmetrics-text;version=1.0.0"

# All families but the last two: hostile labels and no samples have tests of their own.
NAMES = ("kprobe_hits_total", "kprobe_up", "kprobe_duration_seconds", "kprobe_balance")

GOLDEN_TEXT = """\
# HELP kprobe_hits_total How often the probe fired.
# TYPE kprobe_hits_total counter
kprobe_hits_total{probe="open"} 23.0
kprobe_hits_total{probe="vfs_read"} 1e+09
# HELP kprobe_up Whether it works.
# TYPE kprobe_up gauge
kprobe_up{probe="open"} 1.0
# HELP kprobe_duration_seconds The durations.
# TYPE kprobe_duration_seconds histogram
kprobe_duration_seconds_bucket{le="1e-06",probe="open"} 2.0
kprobe_duration_seconds_bucket{le="0.5",probe="open"} 2.0
kprobe_duration_seconds_bucket{le="4.0",probe="open"} 3.0
kprobe_duration_seconds_bucket{le="+Inf",probe="open"} 4.0
kprobe_duration_seconds_sum{probe="open"} 12.25
kprobe_duration_seconds_count{probe="open"} 4.0
# HELP kprobe_balance A histogram that goes below 0.
# TYPE kprobe_balance histogram
kprobe_balance_bucket{le="-1.0"} 1.0
kprobe_balance_bucket{le="0.0"} 3.0
kprobe_balance_bucket{le="+Inf"} 6.0
kprobe_balance_sum -4.5
kprobe_balance_count 6.0
"""

GOLDEN_OPENMETRICS = (
    GOLDEN_TEXT.replace("# HELP kprobe_hits_total", "# HELP kprobe_hits")
    .replace("# TYPE kprobe_hits_total", "# TYPE kprobe_hits")
    .replace("kprobe_balance_sum -4.5\nkprobe_balance_count 6.0\n", "# EOF\n")
)


def exposition(*families: Family) -> Exposition:
    return Exposition(lambda: Snapshot(families, ()))


def text(body: tuple[bytes, str]) -> str:
    return body[0].decode()


def test_golden_text() -> None:
    body, content_type = Exposition(lambda: SNAPSHOT).render(names=NAMES)
    assert body.decode() == GOLDEN_TEXT
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"


def test_golden_openmetrics() -> None:
    body, content_type = Exposition(lambda: SNAPSHOT).render(OPENMETRICS, NAMES)
    assert body.decode() == GOLDEN_OPENMETRICS
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/html,*/*;q=0.8", False),
        (OPENMETRICS, True),
        ("application/openmetrics-text", True),
        # Prometheus 2.42 with its default settings.
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1"
            ";q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        # Prometheus 3, configured to prefer text.
        (
            "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5,"
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.4",
            False,
        ),
        ("application/openmetrics-text;version=1.0.0;q=0", False),
        # The client library's choose_encoder fails at the first and promises the second.
        ("application/openmetrics-text;version=abc", False),
        ("application/openmetrics-text;version=77", False),
        (";;,;=,,q", False),
    ],
)
def test_negotiation(accept: str, expected: bool) -> None:
    body, content_type = exposition().render(accept)
    assert content_type.startswith("application/openmetrics-text") is expected
    assert body.endswith(b"# EOF\n") is expected


PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (PROTOBUF, "protobuf"),
        # Prometheus 2.42 with --enable-feature=native-histograms.
        (
            f"{PROTOBUF},application/openmetrics-text;version=1.0.0;q=0.8,"
            "application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "protobuf",
        ),
        (f"text/plain,{PROTOBUF}", "protobuf"),
        (f"{PROTOBUF};q=0.5,{OPENMETRICS};q=0.6", "openmetrics"),
        (f"{PROTOBUF};q=0.5,{OPENMETRICS};q=0.4,text/plain;q=0.7", "text"),
        (f"{PROTOBUF};q=0", "text"),
        (PROTOBUF.replace("delimited", "text"), "text"),
        ("application/vnd.google.protobuf", "text"),
    ],
)
def test_negotiation_of_protobuf(accept: str, expected: Format) -> None:
    assert exposition().render(accept)[1] == CONTENT_TYPES[expected]


def test_protobuf_has_the_families_of_the_text() -> None:
    whole = Exposition(lambda: SNAPSHOT)
    body, _ = whole.render(PROTOBUF)
    in_text = text(whole.render())
    typed = [line.split()[2:] for line in in_text.splitlines() if line.startswith("# TYPE ")]
    typed.remove(["kprobe_empty_total", "counter"])
    assert [[family.name, TYPES[family.type]] for family in read(body)] == typed


@pytest.mark.parametrize(
    "name", ["kprobe_duration_seconds", "kprobe_duration_seconds_sum", "kprobe_hits_total", "python_info"]
)
def test_a_name_selects_a_family_in_protobuf(name: str) -> None:
    body, _ = Exposition(lambda: SNAPSHOT).render(PROTOBUF, [name])
    assert [family.name for family in read(body)] == [name.removesuffix("_sum")]


def test_entries_in_order() -> None:
    header = 'Text/Plain; Version="0.0.4" ;q=0.5, */*;q=0.1'
    assert list(accepted(header)) == [("text/plain", {"version": "0.0.4"}, 0.5), ("*/*", {}, 0.1)]


@pytest.mark.parametrize("q", ["", "x", "-1", "2", "nan", "inf", "1e999"])
def test_a_bad_quality_is_a_refusal(q: str) -> None:
    assert [quality for *_, quality in accepted(f"text/plain;q={q}")] == [0.0]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("identity", False),
        ("not-gzip", False),
        ("", False),
    ],
)
def test_gzip(header: str, expected: bool) -> None:
    assert accepts_gzip(header) is expected


def test_the_process_is_shown() -> None:
    body = text(Exposition(lambda: SNAPSHOT).render())
    for name in (
        *("kprobe_exporter_scrape_duration_seconds", "process_cpu_seconds_total", "process_open_fds"),
        *("process_resident_memory_bytes", "python_info", "python_gc_collections_total"),
    ):
        assert f"\n# TYPE {name} " in body
    assert "_created" not in body


@pytest.mark.parametrize(
    ("names", "lines"),
    [
        (["kprobe_up"], 3),
        (["kprobe_duration_seconds"], 8),
        (["kprobe_duration_seconds_bucket"], 6),
        (["kprobe_duration_seconds_count", "kprobe_up"], 6),
        (["kprobe_hits_total"], 4),
        (["kprobe_hits"], 4),
        (["python_gc_collections_total"], 5),
        (["process_open_fds"], 3),
        (["kprobe_empty_total"], 0),
        (["no_such"], 0),
    ],
)
def test_names(names: list[str], lines: int) -> None:
    exposed = Exposition(lambda: SNAPSHOT)
    assert exposed.render(names=names)[0].count(b"\n") == lines
    assert exposed.render(OPENMETRICS, names)[0].count(b"\n") == lines + 1


def test_hostile_label_value() -> None:
    exposed = Exposition(lambda: SNAPSHOT)
    body = text(exposed.render(names=["kprobe_opens_total"]))
    assert len(body.rstrip("\n").split("\n")) == 3
    assert r'{comm="a\"b\\c\\nd<script>' in body
    assert body.replace("\n", "").isprintable()
    (family,) = parse_text(body)
    assert family.samples[0].labels == {"comm": one_line(HOSTILE)}
    (family,) = parse_openmetrics(text(exposed.render(OPENMETRICS, ["kprobe_opens_total"])))
    assert family.samples[0].labels == {"comm": one_line(HOSTILE)}


def test_a_lone_surrogate_costs_only_itself() -> None:
    family = Family("x_total", "counter", "\udcff", ("comm",), {("a\udc80é",): 1})
    body = text(exposition(family).render(names=["x_total"]))
    assert 'x_total{comm="a\\\\udc80é"} 1.0' in body


@given(st.text(max_size=20), st.floats(allow_nan=False))
def test_both_formats_come_back(value: str, number: float) -> None:
    exposed = exposition(Family("x", "gauge", value, ("label",), {(value,): number}))
    expected = one_line(value)
    for accept in ("", OPENMETRICS):
        body = text(exposed.render(accept, ["x"]))
        (family,) = (parse_openmetrics if accept else parse_text)(body)
        (sample,) = family.samples
        assert (sample.labels, sample.value) == ({"label": expected}, number)


def test_openmetrics_parses_whole() -> None:
    body = text(Exposition(lambda: SNAPSHOT).render(OPENMETRICS))
    names = {family.name for family in parse_openmetrics(body)}
    assert {"kprobe_hits", "kprobe_balance", "process_cpu_seconds"} <= names


def test_promtool_is_silent(promtool: str) -> None:
    check_metrics(promtool, Exposition(lambda: SNAPSHOT).render()[0])


def test_the_duration_is_that_of_the_last_finished_scrape() -> None:
    ticks = iter([10.0, 10.25, 20.0, 20.0])
    exposed = Exposition(lambda: SNAPSHOT, clock=lambda: next(ticks))
    name = "kprobe_exporter_scrape_duration_seconds"
    assert f"\n{name} 0.0\n" in text(exposed.render(names=[name]))
    assert f"\n{name} 0.25\n" in text(exposed.render(names=[name]))


def test_a_failed_scrape_leaves_the_duration() -> None:
    def broken() -> Snapshot:
        raise RuntimeError

    ticks = iter([0.0, 1.0])
    exposed = Exposition(broken, clock=lambda: next(ticks))
    with pytest.raises(RuntimeError):
        exposed.render()
    assert exposed._duration == 0.0


def test_scrapes_side_by_side() -> None:
    exposed = Exposition(lambda: SNAPSHOT)
    with ThreadPoolExecutor(4) as pool:
        bodies = pool.map(lambda _: text(exposed.render(names=NAMES)), range(4))
    assert [*bodies] == [GOLDEN_TEXT] * 4


def many(count: int) -> Iterator[Family]:
    """Yield about ``count`` samples, half of them in histograms of 15 lines."""
    half = count // 2
    yield Family(
        "kprobe_errors_total",
        "counter",
        "x",
        ("comm", "errno"),
        {(f"process-{i}", "ENOENT"): float(i) for i in range(half)},
    )
    value = HistogramValue(tuple(4.0**i for i in range(12)), tuple(range(13)), 1.5)
    yield Family(
        "kprobe_value", "histogram", "x", ("probe",), {(f"probe_{i}",): value for i in range(half // 15)}
    )


def test_every_sample_of_a_large_snapshot() -> None:
    body, _ = exposition(*many(20_000)).render(names=["kprobe_errors_total", "kprobe_value"])
    assert body.count(b"\n") == 4 + 10_000 + 666 * 15


def test_exemplars_are_for_openmetrics_alone() -> None:
    """The client library's parser finds exemplars only in OpenMetrics, and only on buckets that have one."""
    shown = HistogramValue(
        (0.1, 1.0), (1, 2, 0), 0.5, {1: exemplar_of_span(0xAB, 0x17, 0.3, 1_700_000_000.5)}
    )
    made = exposition(Family("kprobe_duration_seconds", "histogram", "h", ("probe",), {("read",): shown}))
    body = text(made.render("application/openmetrics-text"))
    (family,) = [one for one in parse_openmetrics(body) if one.name == "kprobe_duration_seconds"]
    found = {one.labels["le"]: one.exemplar for one in family.samples if one.exemplar}
    assert set(found) == {"1.0"}
    assert found["1.0"].labels == {"trace_id": f"{0xAB:032x}", "span_id": f"{0x17:016x}"}
    assert (found["1.0"].value, str(found["1.0"].timestamp)) == (0.3, "1700000000.500000000")
    assert "trace_id" not in text(made.render())
