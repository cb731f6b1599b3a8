"""The order of the packages: who may import whom, read from the sources themselves.

One way, no stage importing its neighbour: each knows ``model`` and is handed the next stage as a
callable. ``agent`` is the only module that knows them all.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kprobe_exporter"
NAME = PACKAGE.name

MAY_IMPORT: dict[str, str] = {
    "__init__": "",
    "errors": "",
    "model": "",
    "aggregate": "model",
    "btf": "errors model",
    "export": "errors model",
    "grammar": "errors model",
    "identity": "model",
    "service": "errors",
    "source": "errors model",
    "config": "errors grammar model",
    "elf": "errors grammar",
    "labels": "identity model",
    "tracefs": "errors grammar model",
    "plan": "btf config elf errors grammar model",
    "symbols": "btf elf errors grammar tracefs",
    "web": "config errors export model",
    "probing": "btf config errors grammar identity model plan source symbols tracefs",
    "replay": "aggregate config export labels model plan source",
    "agent": "aggregate config errors export grammar identity labels model plan probing service "
    "source symbols tracefs web",
    "diagnose": "config errors grammar identity labels model plan probing symbols tracefs",
    "trace": "aggregate config elf errors grammar labels model plan probing service source symbols tracefs",
    "cli": "agent config diagnose errors grammar labels probing replay service symbols trace tracefs",
    "__main__": "cli",
}

MODULES = sorted(PACKAGE.rglob("*.py"))


def place(module: Path) -> str:
    """The package that a module belongs to, or the module itself at the top."""
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(module: Path) -> Iterator[str]:
    """The places of our own package that a module imports from, anywhere in it."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith(f"{NAME}."))
            assert NAME not in [alias.name for alias in node.names], "import what is meant, not everything"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their module in full"
            _, *parts = (node.module or "").split(".")
            if node.module == NAME:
                yield from (alias.name for alias in node.names if alias.name != "__version__")
            elif (node.module or "").startswith(f"{NAME}."):
                yield parts[0]


def opens_for_writing(module: Path) -> Iterator[str]:
    """The calls in a module that may write a file."""
    for node in ast.walk(ast.parse(module.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        last = called.rsplit(".", 1)[-1]
        if called == "os.open":
            if "O_RDONLY" not in ast.unparse(node):
                yield called
        elif last in ("write_text", "write_bytes", "touch", "mkdir", "rmdir", "unlink"):
            yield called
        elif last == "open":
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            modes = {a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)}
            if any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes):
                yield called


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
class TestModule:
    def test_it_imports_what_its_place_may(self, module: Path) -> None:
        here = place(module)
        assert here in MAY_IMPORT, "a new place needs a line in the table"
        allowed = {here, *MAY_IMPORT[here].split()}
        assert set(imported(module)) <= allowed

    def test_its_first_line_says_what_it_holds(self, module: Path) -> None:
        said = ast.get_docstring(ast.parse(module.read_text()))
        assert said
        assert module.read_text().startswith('"""')

    def test_its_name_says_something(self, module: Path) -> None:
        assert module.stem not in ("utils", "util", "helpers", "common", "misc")


def test_the_table_has_no_circle() -> None:
    """A package may only import what stands above it."""
    above: set[str] = set()
    order = [
        "__init__",
        "errors",
        "model",
        "aggregate",
        "btf",
        "export",
        "grammar",
        "identity",
        "service",
        "source",
        "config",
        "elf",
        "labels",
        "tracefs",
        "plan",
        "symbols",
        "web",
        "probing",
        "replay",
        "agent",
        "diagnose",
        "trace",
        "cli",
        "__main__",
    ]
    assert set(order) == set(MAY_IMPORT)
    for name in order:
        assert set(MAY_IMPORT[name].split()) <= above
        above.add(name)


def test_only_one_module_writes_below_tracefs() -> None:
    """Opened in the wrong way, a definitions file deletes everybody's probes."""
    writers = {module: set(opens_for_writing(module)) for module in (PACKAGE / "tracefs").glob("*.py")}
    assert {module.name: calls for module, calls in writers.items() if calls} == {
        "files.py": {"os.open", "(self.root / path).mkdir", "(self.root / path).rmdir"},
        # Through the one above: they call the Tracefs that they are given.
        "instance.py": {"files.mkdir", "files.rmdir"},
    }


def test_nothing_else_writes_files() -> None:
    elsewhere = [module for module in MODULES if place(module) != "tracefs"]
    assert {str(module): calls for module in elsewhere if (calls := set(opens_for_writing(module)))} == {}


def test_nobody_truncates() -> None:
    assert [module for module in MODULES if "os.O_TRUNC" in module.read_text()] == []


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ('open(p, "w")', ["open"]),
        ('open(p, mode="ab")', ["open"]),
        ('p.open("r+")', ["p.open"]),
        ("open(p)", []),
        ('open(p, "rb")', []),
        ("os.open(p, os.O_WRONLY)", ["os.open"]),
        ("os.open(p, os.O_RDONLY | os.O_CLOEXEC)", []),
        ("p.write_text('x')", ["p.write_text"]),
    ],
)
def test_what_counts_as_writing(tmp_path: Path, source: str, calls: list[str]) -> None:
    module = tmp_path / "m.py"
    module.write_text(source)
    assert list(opens_for_writing(module)) == calls
