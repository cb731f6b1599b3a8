"""A small snapshot with every kind of family, and a hostile string."""

from kprobe_exporter.model.snapshot import Family, HistogramValue, ProbeStatus, Snapshot

HOSTILE = 'a"b\\c\nd<script>&\x1b[31m\u202e\x00é'

HITS: dict[tuple[str, ...], float] = {("open",): 23, ("vfs_read",): 1e9}
DURATIONS = HistogramValue((1e-06, 0.5, 4.0), (2, 0, 1, 1), 12.25)
BALANCE = HistogramValue((-1.0, 0.0), (1, 2, 3), -4.5)

SNAPSHOT = Snapshot(
    families=(
        Family("kprobe_hits_total", "counter", "How often the probe fired.", ("probe",), HITS),
        Family("kprobe_up", "gauge", "Whether it works.", ("probe",), {("open",): 1}),
        Family("kprobe_duration_seconds", "histogram", "The durations.", ("probe",), {("open",): DURATIONS}),
        Family("kprobe_balance", "histogram", "A histogram that goes below 0.", (), {(): BALANCE}),
        Family("kprobe_opens_total", "counter", "By process.", ("comm",), {(HOSTILE,): 1}),
        Family("kprobe_empty_total", "counter", "Nothing seen yet.", ("comm",), {}),
    ),
    probes=(
        ProbeStatus("open", "up", "kretprobe", "do_sys_openat2", "events", "", 23, 0, 23, lost=0),
        ProbeStatus(HOSTILE, "down", "kprobe", HOSTILE, HOSTILE, HOSTILE, None, None, 0, HOSTILE),
    ),
)
