"""A tracefs that is a table of files, shared with the tests of tracefs."""

from tests.unit.tracefs.conftest import table

__all__ = ["table"]
