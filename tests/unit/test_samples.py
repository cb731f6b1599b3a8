"""The tests' own parser of metrics finds what prometheus_client's finds, and refuses what is none."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.samples import Labels, samples

GOLDEN = sorted((Path(__file__).parents[1] / "e2e/golden").glob("*.prom"))

ODD = r"""# HELP odd A sample of each kind.
# TYPE odd gauge
odd 1
odd{a="",b="x=\"1\",c=\"2\"}"} -2.5e-3
odd{path="C:\\new\n\\n"} +Inf
odd{brace="{}"} -Inf 1700000000000
"""


def reference(text: str) -> dict[tuple[str, Labels], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("text", [path.read_text() for path in GOLDEN] + [ODD])
def test_it_finds_the_same(text: str) -> None:
    found = samples(text)
    assert len(found) > 3
    assert found == reference(text)


@pytest.mark.parametrize("line", ["odd", "odd{a=1} 1", 'odd{a="1} 1', "odd x", "1odd 1", r'odd{a="\x"} 1'])
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no sample|no labels|could not convert"):
        samples(f"{line}\n")


def test_a_repeated_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        samples('a{b="1"} 1\na{b="1"} 2\n')
