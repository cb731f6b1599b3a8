"""Tests on a real kernel, as root."""
