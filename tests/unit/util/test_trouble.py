"""Of failures in a row one is logged, and their end."""

from kprobe_exporter.util.trouble import Trouble


def test_one_of_many_failures() -> None:
    trouble = Trouble()
    assert not trouble.succeeded()
    assert [trouble.failed() for _ in range(3)] == [True, False, False]
    assert [trouble.succeeded() for _ in range(2)] == [True, False]
    assert trouble.failed()


def test_a_trouble_that_comes_and_goes() -> None:
    now = 0.0
    trouble = Trouble(60, lambda: now)
    assert trouble.failed()
    assert trouble.succeeded()
    assert not trouble.failed()
    assert not trouble.succeeded()
    now = 60.0
    assert trouble.failed()
