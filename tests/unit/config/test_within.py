"""`container` and `pod`: where they may stand, and what they select."""

import pytest

from kprobe_exporter.config.model import Within
from tests.unit.config.conftest import Load, Problems

ID = "9f3c" * 16


def test_they_are_read(config: Load) -> None:
    first, second = config(
        "probes: [{name: p, attach: 'uprobe:/bin/x:f', container: app, pod: 'shop/db-*'},"
        " {name: q, attach: 'kprobe:f'}]"
    ).probes
    assert first.within == Within("app", "shop/db-*")
    assert second.within is None


@pytest.mark.parametrize(
    ("within", "name", "pod", "selected"),
    [
        (Within("app"), "app", "shop/db-0", True),
        (Within("app"), "sidecar", "shop/db-0", False),
        (Within("9f3c*"), None, None, True),
        (Within("9f3d*"), None, None, False),
        (Within(ID[:12]), None, None, True),
        (Within(ID[:11]), None, None, False),
        (Within("*"), None, None, True),
        (Within(None, "db-*"), "app", "shop/db-0", True),
        (Within(None, "shop/*"), "app", "shop/db-0", True),
        (Within(None, "shop/*"), "app", "test/db-0", False),
        (Within(None, "shop"), "app", "shop/db-0", False),
        (Within(None, "*"), None, None, False),
        (Within("app", "db-[0-9]"), "app", "shop/db-7", True),
        (Within("app", "db-[0-9]"), "app", "shop/db-x", False),
    ],
)
def test_what_they_select(within: Within, name: str | None, pod: str | None, selected: bool) -> None:
    assert within.selects(ID, name, pod) is selected


@pytest.mark.parametrize(
    ("attach", "sentence"),
    [
        ("'kprobe:f'", "'kprobe:f' is in the kernel, which all containers share: leave this key out"),
        (
            "{pair: {from: 'uprobe:/bin/x:f', to: 'kprobe:g', key: tid}}",
            "'kprobe:g' is in the kernel, which all containers share: leave this key out",
        ),
        (
            "'usdt:/bin/x:p:*'",
            "'usdt:/bin/x:p:*' is a pattern, for which a file has to be there: name one probe",
        ),
        (
            "'uprobe:/host:libc.so.6:f'",
            "'/host:libc.so.6' names a root: leave this key out, or write the path in the container",
        ),
        (
            "'uprobe:/proc/1/root/bin/x:f'",
            "'/proc/1/root/bin/x' names a root: leave this key out, or write the path in the container",
        ),
    ],
)
@pytest.mark.parametrize("key", ["container", "pod"])
def test_where_they_may_not_stand(problems: Problems, key: str, attach: str, sentence: str) -> None:
    found = problems(f"probes:\n- name: p\n  attach: {attach}\n  {key}: x\n")
    assert [one.partition(f"{key}: ")[2] for one in found] == [sentence]
    assert found[0].startswith("4:")


@pytest.mark.parametrize("text", ["a b", "''", "x;y"])
def test_no_name(problems: Problems, text: str) -> None:
    [found] = problems(f"probes:\n- {{name: p, attach: 'uprobe:/bin/x:f', pod: {text!r}}}\n")
    assert "A-Z, a-z, 0-9" in found
