"""Programs whose code a thread looks up."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from kprobe_exporter.aggregate.program_stacks import ProgramStacks
from tests.support.program_code import Code


@pytest.fixture
def code() -> Code:
    return Code()


@pytest.fixture
def programs(code: Code) -> Iterator[ProgramStacks]:
    with closing(ProgramStacks(lambda: code)) as made:
        yield made
        code.goes_on.set()
