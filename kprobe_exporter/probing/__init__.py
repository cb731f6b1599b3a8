"""Attaching probes: what the kernel is like, and which source reads its events."""
