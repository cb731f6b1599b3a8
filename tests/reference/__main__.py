"""Writes the reference documents anew."""

from tests.reference import FILES, ROOT

for name, document in FILES.items():
    (ROOT / name).write_text(document())
    print(f"written: {name}")
