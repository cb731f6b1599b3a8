"""Hashes by which a content security policy allows a page's own style and script, and nothing else."""

import base64
import hashlib


def source_hash(text: str) -> str:
    """Return the source expression of an inline style or script (CSP level 2, hash-source)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
