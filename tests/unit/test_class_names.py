"""A public class name stands in one module only, so that a reader knows which class is meant."""

import ast
from collections import defaultdict
from pathlib import Path

import kprobe_exporter

PACKAGE = Path(kprobe_exporter.__file__).parent


def test_no_public_class_name_is_in_two_modules() -> None:
    modules = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(modules) > 100
    assert {name: places for name, places in modules.items() if len(places) > 1} == {}
