"""rates: a rate every 5 s, for the last 5 minutes, for each current probe."""

from kprobe_exporter.agent.rates import STEP, STEPS, History


def test_rates_in_hits_a_second() -> None:
    history = History()
    for step, hits in enumerate((100, 100, 150, 1150)):
        history.update(1000 + step * STEP, {"a": hits})
    assert history.rates("a") == (0.0, 10.0, 200.0)


def test_it_may_be_asked_too_often_and_too_seldom() -> None:
    history = History()
    for now, hits in ((0, 0), (1, 99), (4.9, 99), (20, 100)):
        history.update(now, {"a": hits})
    assert history.rates("a") == (5.0,)


def test_only_the_last_minutes() -> None:
    history = History()
    for step in range(STEPS + 10):
        history.update(step * STEP, {"a": step * 5})
    assert history.rates("a") == (1.0,) * STEPS


def test_probes_come_and_go() -> None:
    history = History()
    history.update(0, {"a": 0})
    history.update(5, {"a": 5, "b": 50})
    history.update(10, {"b": 55})
    assert (history.rates("a"), history.rates("b")) == ((), (1.0,))
    history.update(15, {"a": 5, "b": 55})
    assert (history.rates("a"), history.rates("b")) == ((), (1.0, 0.0))
