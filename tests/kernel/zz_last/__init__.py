"""Tests after which a kernel is of no use: they run last."""
