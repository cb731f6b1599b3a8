"""The commands of the documents that trace."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

DOCUMENTS = ("docs/runbook.md", "README.md", "docs/command-line.md")

TEXT = "".join((ROOT / name).read_text() for name in DOCUMENTS)

FOUND = set(re.findall(r"^kprobe-exporter trace ([^#\n]*?)\s*(?:#.*)?$", TEXT, re.MULTILINE))
