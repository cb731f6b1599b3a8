"""Helpers for the tests of several suites; this package holds no tests."""
