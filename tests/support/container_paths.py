"""Paths of cgroups of containers and pods."""

A, B = "a1" * 32, "0b" * 32


UID = "0f6dd4bd-9a2c-4a4b-8b5e-3e1f0a9d7c11"

UNIT = UID.replace("-", "_")
