"""What is expected of calls whose numbers can be counted on the fingers."""

from tests.kernel.differential.compare import differences, fallen, samples
from tests.kernel.differential.expected import EVENTS, HITS, LOST, Expected, Range, expected
from tests.kernel.differential.load import Firing
from tests.kernel.differential.probes import Comparison, Condition, Fetch, Label, Metric, Probe
from tests.support.agent_process import Metrics


def call(point: str, a: int, begin: int, role: str = "call", **others: int) -> Firing:
    whole = {"b": 0, "tid": 10, "cpu": 0, "least": 0, "end": begin + 10, "result": a} | others
    return Firing(point, role, a, text=b"text", begin=begin, comm=b"load", **whole)


def value(one: Expected, name: str, **labels: str) -> tuple[float, float] | frozenset[float] | None:
    """The bounds of a sample without the error of floating point, or the values of a gauge."""
    found = one.samples.get(name, {}).get(frozenset(labels.items()))
    if isinstance(found, Range):
        return found.low, found.high
    return found.values if found is not None else None


VALUES = [call("take_value", a, 100 * number) for number, a in enumerate((1, 2, 300, -1))]
BYTE, SIGNED = (Fetch("value", "u8"),), (Fetch("value", "s64"),)


def test_hits_count_what_a_filter_turns_away() -> None:
    above_1 = Condition((Comparison("value", ">", 1),))
    probe = Probe("p", "uprobe", "take_value", SIGNED, filter=above_1)
    result = expected([((probe,), VALUES)])
    assert value(result, HITS, probe="p") == (4, 4)
    assert value(result, EVENTS, probe="p") == (2, 2)


def test_a_value_is_read_as_its_type() -> None:
    metric = Metric("counter", "sum_total", "value", (Label("value", "value", "hex"),))
    result = expected([((Probe("p", "uprobe", "take_value", BYTE, metrics=(metric,)),), VALUES)])
    assert value(result, "kprobe_sum_total", value="0x2c") == (44, 44)
    assert value(result, "kprobe_sum_total", value="0xff") == (255, 255)


def test_a_counter_refuses_negative_values() -> None:
    metric = Metric("counter", "sum_total", "value")
    probe = Probe("p", "uprobe", "take_value", SIGNED, metrics=(metric,))
    result = expected([((probe,), VALUES)])
    assert value(result, "kprobe_sum_total") == (303, 303)
    assert value(result, LOST, reason="negative") == (1, 1)


def test_returns_are_errors_or_values() -> None:
    probe = Probe("p", "uretprobe", "take_value", returns="int")
    result = expected([((probe,), VALUES)])
    assert value(result, "kprobe_return_errors_total", probe="p", errno="-1") == (1, 1)
    assert value(result, "kprobe_return_value_bucket", probe="p", le="4.0") == (2, 2)
    assert value(result, "kprobe_return_value_count", probe="p") == (3, 3)


def test_durations_lie_within_the_clock_readings_of_the_load() -> None:
    naps = [call("take_nap", 5, 0, least=5_000, end=9_000), call("take_nap", 5, 20_000, end=21_000)]
    metric = Metric("histogram", "nap_seconds", "duration", buckets=(2e-6, 7e-6))
    result = expected([((Probe("p", "ucall", "take_nap", returns="void", metrics=(metric,)),), naps)])
    assert value(result, "kprobe_nap_seconds_bucket", le="2e-06") == (1, 1)
    assert value(result, "kprobe_nap_seconds_bucket", le="7e-06") == (1, 2)
    assert value(result, "kprobe_nap_seconds_sum") == (5e-6, 10e-6)


def test_a_call_that_was_left_is_unpaired_when_its_thread_enters_again_or_ends() -> None:
    entered = call("leap_out", 1, 0, "entry"), call("leap_out", 1, 20, "entry", tid=11)
    leaps = [*entered, call("leap_out", 1, 40)]
    result = expected([((Probe("p", "ucall", "leap_out", returns="void"),), leaps)])
    assert value(result, HITS, probe="p") == (3, 3)
    assert value(result, EVENTS, probe="p") == (1, 1)
    assert value(result, LOST, reason="unpaired") == (2, 2)


def test_a_pair_is_the_last_beginning_and_the_next_end() -> None:
    firings = [
        call("pair_end", 1, 0),
        call("pair_begin", 1, 20, b=5),
        call("pair_begin", 1, 40, b=6),
        call("pair_end", 1, 60, b=7),
        call("pair_begin", 2, 80),
    ]
    metric = Metric("gauge", "seen", "other", (Label("value", "value"),))
    fetch = tuple(Fetch(name, "s64") for name in ("key", "value", "other"))
    pair = Probe("p", "pair", "pair_begin", fetch, metrics=(metric,), keys=("key",))
    result = expected([((pair,), firings), ((), ())])
    assert value(result, LOST, reason="unpaired") == (2, 2)  # one was replaced, one waits at the end
    result = expected([((pair,), firings)])
    assert value(result, LOST, reason="unpaired") == (1, 1)
    of_thread = Probe("p", "pair", "pair_begin", fetch, metrics=(metric,), keys=("key", "tid"))
    assert value(expected([((of_thread,), firings)]), LOST, reason="unpaired") == (2, 2)
    assert value(result, "kprobe_seen", value="6") == frozenset({7.0})
    assert value(result, HITS, probe="p") == (3, 3)


def test_after_a_reload_equal_metrics_continue_and_others_start_again() -> None:
    same, before = Metric("counter", "same_total"), Metric("counter", "other_total")
    after = Metric("counter", "other_total", "value")
    first = Probe("p", "uprobe", "take_value", BYTE, metrics=(same, before))
    second = Probe("p", "uprobe", "take_value", BYTE, metrics=(same, after))
    result = expected([((first,), VALUES), ((second,), VALUES[:2])])
    assert value(result, "kprobe_same_total") == (6, 6)
    assert value(result, "kprobe_other_total") == (3, 3)
    assert value(result, HITS, probe="p") == (6, 6)


def test_a_scrape_is_compared_sample_by_sample() -> None:
    metric = Metric("counter", "seen_total", labels=(Label("cpu", "cpu"),))
    wanted = expected([((Probe("p", "uprobe", "take_value", metrics=(metric,)),), VALUES)])
    good = (
        'kprobe_hits_total{probe="p"} 4\nkprobe_exporter_events_total{probe="p"} 4\n'
        'kprobe_seen_total{cpu="0"} 4\nkprobe_exporter_events_lost_total{reason="overrun"} 7\n'
    )
    before = Metrics('kprobe_exporter_events_lost_total{reason="overrun"} 7\n')
    assert differences(wanted, samples(Metrics(good), before)) == []
    bad = good.replace('cpu="0"} 4', 'cpu="1"} 4').replace("} 7", "} 9")
    assert differences(wanted, samples(Metrics(bad), before)) == [
        "kprobe_seen_total{cpu='0'} is missing, expected 4",
        "kprobe_seen_total{cpu='1'} is 4, expected no such sample",
        "kprobe_exporter_events_lost_total{reason='overrun'} rose by 2, expected 0",
    ]
    assert fallen(Metrics(good), Metrics(good.replace("} 4", "} 3")))[0].endswith("fell from 4 to 3")
