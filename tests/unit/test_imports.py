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
    "errors": "",
    "recipe": "",
    "hist": "",
    "model": "recipe hist",
    "shape": "model",
    "stop": "",
    "budget": "",
    "overhead": "model",
    "history": "",
    "watch": "budget history overhead",
    "grammar": "errors model",
    "btf": "errors model",
    "elf": "errors grammar",
    "config": "errors model grammar",
    "tracefs": "errors hist model grammar",
    "plan": "btf elf errors hist model recipe shape config grammar",
    "source": "errors model recipe shape",
    "aggregate": "hist model recipe grammar",
    "identity": "errors model",
    "labels": "model identity",
    "export": "errors model",
    "reading": "errors model recipe shape config tracefs plan source identity",
    "kernel": "btf config errors grammar plan tracefs",
    "attach": "errors grammar hist model plan tracefs",
    "probe_state": "aggregate attach model overhead plan",
    "follow": "config errors grammar identity model plan tracefs",
    "telemetry": "aggregate attach config export grammar labels model plan source",
    "reload": "config",
    "pruning": "model tracefs",
    "installation": "attach config errors follow kernel labels model plan probe_state reading tracefs",
    "faults": "",
    "mending": "errors probe_state",
    "vigil": "faults grammar mending probe_state tracefs",
    "stream": "aggregate attach config follow model plan probe_state reading recipe source telemetry tracefs",
    "balance": "aggregate attach",
    "roster": "aggregate balance errors follow installation model probe_state pruning source stop stream"
    " tracefs",
    "agent": "aggregate config errors follow heartbeat installation labels mending model plan probe_state"
    " reading reload roster source stop stream telemetry tracefs vigil watch",
    "live": "kernel errors model grammar config tracefs plan reading labels",
    "confinement": "identity tracefs",
    "listing": "btf elf errors grammar tracefs",
    "trace": "attach kernel recipe reading stop errors model grammar config tracefs plan elf source aggregate"
    " labels",
    "replay": "model config plan source aggregate labels export",
    "web_config": "errors config export",
    "systemd": "",
    "heartbeat": "systemd",
    "serve": "agent errors heartbeat model config systemd tracefs export stop web_config",
    # The decoders' names are handed to the configuration by whoever loads it.
    "cli": "agent config confinement errors follow grammar labels listing live model reading replay serve"
    " stop trace tracefs",
    "__main__": "cli",
    # The package itself: its version.
    "__init__": "",
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
        "errors",
        "recipe",
        "hist",
        "model",
        "shape",
        "stop",
        "grammar",
        "btf",
        "elf",
        "config",
        "tracefs",
        "plan",
        "source",
        "aggregate",
    ]
    order += [
        "identity",
        "labels",
        "export",
        "reading",
        "kernel",
        "attach",
        "overhead",
        "probe_state",
        "follow",
        "telemetry",
        "budget",
        "history",
        "watch",
        "systemd",
        "heartbeat",
        "reload",
        "pruning",
        "faults",
        "mending",
        "vigil",
        "installation",
        "stream",
        "balance",
        "roster",
        "agent",
        "live",
        "confinement",
        "listing",
        "trace",
        "replay",
        "web_config",
        "serve",
        "cli",
        "__main__",
        "__init__",
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
