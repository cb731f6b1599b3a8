"""The total of a metric."""

from tests.support.agent_process import Metrics


def total(metrics: Metrics, name: str, **labels: str) -> float:
    """Return the sum over the label sets that have these labels."""
    return sum(
        value for (found, key), value in metrics.items() if found == name and key >= set(labels.items())
    )
