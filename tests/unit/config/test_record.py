"""config: what ``record`` may say, and the metrics that count its conditions."""

from pathlib import Path

from kprobe_exporter.config.recordings import Condition, RecordingSettings, RecordSettings
from tests.unit.config.conftest import Load, Refused, refusals

PROBES = "probes: [{name: read, attach: 'call:vfs_read'}, {name: tcp, attach: 'kprobe:tcp_*'}]\n"


def record(recordings: str, more: str = "") -> str:
    return f"{PROBES}record: {{{more}recordings: [{recordings}]}}\n"


def test_defaults(config: Load) -> None:
    found = config(record("{name: slow, probes: [read]}")).record
    directory = "/var/lib/kprobe_exporter/recordings"
    assert found == RecordSettings(directory, 256 << 20, 100, (RecordingSettings("slow", ("read",)),))
    assert config(PROBES).record is None
    assert config(PROBES + "record: {max_files: 3}\n").record is None


def test_everything_that_is_given(config: Load) -> None:
    found = config(
        record(
            "{name: slow, probes: [read, tcp, 'tracepoint:sched:sched_switch'], window: 500ms,"
            " buffer_size: 64KiB, when: [{probe: read, where: duration > 500ms}, {probe: tcp}], every: 1m,"
            " formats: [perfetto, trace.dat], marks: true}",
            "directory: /rec, max_bytes: 1MiB, max_files: 2, ",
        )
    )
    when = Condition("read", "duration > 500ms"), Condition("tcp")
    tracepoints = ("sched/sched_switch",)
    names = ("read", "tcp", "tcp_*")
    one = RecordingSettings(
        "slow", names, tracepoints, 0.5, 65536, when, 60.0, ("perfetto", "trace.dat"), True
    )
    assert found.record == RecordSettings("/rec", 1 << 20, 2, (one,))
    assert [str(condition) for condition in when] == ["read: duration > 500ms", "tcp"]


def test_conditions_are_counters_of_their_probes(config: Load) -> None:
    read, tcp = config(
        record("{name: slow, probes: [tcp], when: [{probe: read, where: duration > 1s}, {probe: tcp}]}")
    ).probes
    [metric] = read.metrics
    assert (metric.kind, metric.name, metric.where) == ("counter", "record_slow_total", "duration > 1s")
    assert [(one.name, one.where) for one in tcp.metrics] == [("record_slow_total", None)]
    # Counts of the kernel would come once a second.
    assert (read.aggregate, tcp.aggregate) == ("events", "events")


def test_unknown_names(refused: Refused) -> None:
    refused(record("{name: a, probes: [¦raed]}"), "record.recordings[0].probes[0]: there is no probe 'raed'")
    refused(
        record("{name: a, probes: ['¦kprobe:f']}").replace("'¦", "¦'"),
        "record.recordings[0].probes[0]: there is",
    )
    refused(
        record("{name: a, probes: [read], when: [{probe: ¦tpc}]}"),
        "record.recordings[0].when[0].probe: there is no probe 'tpc', did you mean",
    )


def test_two_of_a_kind(refused: Refused) -> None:
    refused(
        record("{name: a, probes: [read]}, {name: ¦a, probes: [read]}"),
        "record.recordings[1].name: there is a recording 'a' already",
    )
    refused(
        record("{name: a, probes: [read], when: [{probe: read}, {probe: ¦read, where: duration > 1s}]}"),
        "record.recordings[0].when[1].probe: this recording has a condition on 'read'",
    )


def test_a_condition_is_checked_like_a_metrics(refused: Refused) -> None:
    refused(
        record("{name: a, probes: [read], when: [{probe: tcp, where: ¦duration > 1s}]}"),
        "record.recordings[0].when[0].where: ",
    )


def test_values_that_are_refused(refused: Refused) -> None:
    refused(record("{name: a, probes: [read], window: ¦0s}"), "record.recordings[0].window: ")
    refused(record("{name: a, ¦probes: []}"), "record.recordings[0].probes: ")
    refused(record("{name: a, probes: [read], formats: [¦pdf]}"), "record.recordings[0].formats[0]: ")
    refused(record("{name: ¦A, probes: [read]}"), "record.recordings[0].name: ")
    refused(record("", "directory: ¦rec, "), "record.directory: ")


def test_a_wrong_probe_hides_no_recording(tmp_path: Path) -> None:
    """A recording that names it is not told to name no probe."""
    text = "probes: [{name: p, attach: 'nothing:f'}]\nrecord: {recordings: [{name: a, probes: [p]}]}\n"
    [problem] = refusals(tmp_path, c=text)
    assert "probes[0].attach" in problem
