"""The fate of an agent's log records and spans, by its own metrics."""

from kprobe_exporter.export.otlp.channel import SignalCounts
from tests.support.agent_process import AgentProcess, Metrics


def outcome(metrics: Metrics, signal: str) -> SignalCounts:
    """Return the counts of the items of a signal, ``logs`` or ``traces``."""
    name = "kprobe_exporter_otlp_{}_total"
    return SignalCounts(
        *[int(metrics.value(name.format(fate), signal=signal)) for fate in SignalCounts._fields]
    )


def require_lossless(agent: AgentProcess, metrics: Metrics, signal: str) -> None:
    """Raise AssertionError if an item was dropped or has failed, because it can no longer arrive."""
    _, dropped, failed = outcome(metrics, signal)
    assert dropped == failed == 0, f"{dropped} {signal} were dropped, {failed} failed: {agent.output()}"


def exported(agent: AgentProcess, seconds: float = 50, **numbers: int) -> Metrics:
    """Scrape until the collector has accepted this number of items of each signal; return the last scrape.

    Raises AssertionError with the agent's log once an item was dropped or has failed.
    """

    def all_are(metrics: Metrics) -> bool:
        for signal in numbers:
            require_lossless(agent, metrics, signal)
        return all(outcome(metrics, signal).exported >= number for signal, number in numbers.items())

    return agent.scrape_until(all_are, seconds)
