"""The reference documents, the manual page and the shells' completion, made from the code that they describe;
and the numbers of system calls, made from headers.

``make reference`` writes them. A unit test makes them again and compares. What the code cannot
tell is written here, as Markdown.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.reference import command_line, configuration, ebpf_exporter, kernels, metrics, system_calls, tools

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

DOCUMENTS: Mapping[str, Callable[[], str]] = {
    "configuration.md": configuration.document,
    "metrics.md": metrics.document,
    "ebpf-exporter.md": ebpf_exporter.document,
    "kernels.md": kernels.document,
    "tools.md": tools.document,
}
"""Each below ``DOCS``, and what makes it."""

FILES: Mapping[str, Callable[[], str]] = {
    **{f"docs/{name}": document for name, document in DOCUMENTS.items()},
    **{f"deploy/package/{name}": document for name, document in command_line.DOCUMENTS.items()},
    "kprobe_exporter/labels/syscall_numbers.py": system_calls.module,
}
"""All that is written, each below ``ROOT``, and what makes it."""
