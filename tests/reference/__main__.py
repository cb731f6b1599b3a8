"""Writes the reference documents anew."""

from tests.reference import DOCS, DOCUMENTS

for name, document in DOCUMENTS.items():
    (DOCS / name).write_text(document())
    print(f"written: docs/{name}")
