"""A token bucket fills up at its rate, up to its burst, and may be in debt."""

from kprobe_exporter.util.token_bucket import TokenBucket


def test_it_fills_up() -> None:
    bucket = TokenBucket(2, 2, 10.0)
    assert [bucket.take(10.0) for _ in range(3)] == [True, True, False]
    assert [bucket.take(10.5) for _ in range(2)] == [True, False]
    assert [bucket.take(100.0) for _ in range(3)] == [True, True, False]


def test_a_debt_is_paid_before_a_token_is_given() -> None:
    bucket = TokenBucket(1, 5)
    bucket.level -= 7
    assert bucket.refill(1.0) == -1
    assert not bucket.take(2.5)
    assert bucket.take(3.0)
