"""The reference documents, made from the code that they describe: ``python -m tests.reference`` writes them.

A unit test makes them again and compares. What the code cannot tell is written here, as Markdown.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.reference import configuration, ebpf_exporter, kernels, metrics

DOCS = Path(__file__).parents[2] / "docs"

DOCUMENTS: Mapping[str, Callable[[], str]] = {
    "configuration.md": configuration.document,
    "metrics.md": metrics.document,
    "ebpf-exporter.md": ebpf_exporter.document,
    "kernels.md": kernels.document,
}
"""Each below ``DOCS``, and what makes it."""
