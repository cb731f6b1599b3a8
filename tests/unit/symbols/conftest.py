"""A tracefs that is a table of files: the one that the tests of tracefs have."""

from tests.unit.tracefs.conftest import table

__all__ = ["table"]
