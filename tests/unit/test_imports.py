"""Which package may import which: the code, its packages' docstrings and ARCHITECTURE.md agree.

A package is a directory below ``kprobe_exporter/``. The table in ARCHITECTURE.md has one row for each,
and one for each of the two modules that stand beside them. A row names exactly what its package imports.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kprobe_exporter"
NAME = PACKAGE.name
DOCUMENT = ROOT / "ARCHITECTURE.md"

LONGEST_CHAIN = 8
"""The number of packages in the longest chain of imports, counting both ends."""

PYTHON = sorted(PACKAGE.rglob("*.py"))
CYTHON = sorted(path for path in PACKAGE.rglob("*.p?[xdi]") if path.suffix in (".pyx", ".pxd", ".pxi"))

Imports = Mapping[str, Mapping[str, list[str]]]
"""For each package, the packages that it imports, each with the files that import it."""


def package_of(file: Path) -> str:
    """Return a module's directory, such as ``export/otlp``, or its own name if it is beside the packages."""
    place = file.relative_to(PACKAGE)
    return place.parent.as_posix() if len(place.parts) > 1 else place.stem


def package_named(name: str) -> str:
    """Return the package of a dotted name in the form of ``package_of``; "" for the root package alone."""
    place = PACKAGE
    parts = name.split(".")[1:]
    for part in parts:
        if not (place / part).is_dir():
            break
        place /= part
    return place.relative_to(PACKAGE).as_posix() if place != PACKAGE else "".join(parts[:1])


def in_python(source: str) -> Iterator[str]:
    """Yield the dotted names of this project that Python code imports anywhere."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if ours(alias.name))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import names its module in full"
            if ours(node.module or ""):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and called(node.func).endswith(("import_module", "__import__")):
            yield from re.findall(rf"\b{NAME}[\w.]*\w", ast.unparse(node.args[0]))


def called(function: ast.expr) -> str:
    """Return the last name of what is called; "" if that has none. ast.unparse() takes ten times longer."""
    return getattr(function, "attr", getattr(function, "id", ""))


IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<module>[\w.]+)[ \t]+c?import[ \t]+(?:\((?P<listed>[^)]*)\)|(?P<names>[^\n]+))"
    r"|c?import[ \t]+(?P<modules>[^\n]+))",
    re.MULTILINE,
)


def in_cython(source: str) -> Iterator[str]:
    """Yield the dotted names of this project that Cython code imports or cimports."""
    code = re.sub(r'"""(?:.|\n)*?"""|#.*', "", source).replace("\\\n", " ")
    for found in IMPORT.finditer(code):
        if module := found["module"]:
            assert not module.startswith("."), "an import names its module in full"
            names = (found["listed"] or found["names"]).split(",")
            if ours(module):
                yield from (f"{module}.{name.split()[0]}" for name in names if name.strip())
        else:
            yield from (name.split()[0] for name in found["modules"].split(",") if ours(name.split()[0]))


def ours(name: str) -> bool:
    return name == NAME or name.startswith(f"{NAME}.")


@cache
def imports() -> Imports:
    found: dict[str, dict[str, list[str]]] = {}
    for file in (*PYTHON, *CYTHON):
        if file == PACKAGE / "__init__.py":
            continue
        here = found.setdefault(package_of(file), {})
        for name in (in_python if file.suffix == ".py" else in_cython)(file.read_text()):
            assert name != NAME, f"{file}: import what is meant, not everything"
            if name != f"{NAME}.__version__" and (package := package_named(name)) != package_of(file):
                here.setdefault(package, []).append(str(file.relative_to(ROOT)))
    return found


@cache
def table() -> Mapping[str, list[str]]:
    """Return the table in ARCHITECTURE.md: what each package may import. A row may span several lines."""
    text = DOCUMENT.read_text().partition("\n## Packages\n")[2].partition("\n## ")[0]
    head, *lines = text.partition("```\n")[2].partition("```")[0].splitlines()
    column = head.index("may import")
    rows: dict[str, list[str]] = {}
    for line in lines:
        if not line.startswith(" "):
            name = line.split()[0].removesuffix("/").removesuffix(".py")
            assert name not in rows, f"{name} has two rows"
            rows[name] = []
        rows[name] += re.findall(r"[\w/]+", line[column:])
    return rows


PACKAGES = sorted(imports())


def test_the_table_has_a_row_for_each_package() -> None:
    assert sorted(table()) == PACKAGES


def test_a_row_names_only_rows_above_it() -> None:
    rows = list(table())
    assert {row: late for row in rows if (late := set(table()[row]) - set(rows[: rows.index(row)]))} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_what_its_row_says(package: str) -> None:
    actual = imports()[package]
    row = table().get(package, [])
    missing = {name: files for name, files in actual.items() if name not in row}
    assert missing == {}, f"not in the row of {package} in {DOCUMENT.name}"
    assert row == sorted(actual), f"all that {package} imports, in alphabetical order"


@pytest.mark.parametrize("package", [name for name in PACKAGES if (PACKAGE / name).is_dir()])
def test_a_package_says_what_it_may_import(package: str) -> None:
    said = ast.get_docstring(ast.parse((PACKAGE / package / "__init__.py").read_text()))
    assert said
    names = ", ".join(sorted(imports()[package])) or "nothing"
    expected = f"May import {' and '.join(names.rsplit(', ', 1))}."
    assert " ".join(said.split()).endswith(expected), f"the docstring of {package} ends with: {expected}"


def modules_imported_by(file: Path) -> set[str]:
    """Return the modules of this project that a module imports, in the form of ``a.b.c``."""
    names = in_python(file.read_text())
    dotted = {module_of(path) for path in PYTHON}
    return {name if name in dotted else name.rpartition(".")[0] for name in names} - {module_of(file)}


def module_of(file: Path) -> str:
    return ".".join((NAME, *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def test_no_module_imports_itself_by_way_of_others() -> None:
    """A package's own functions, in its ``__init__``, may import its modules when they are called."""
    left = {module_of(file): modules_imported_by(file) for file in PYTHON if file.stem != "__init__"}
    while free := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in free:
            del left[module]
    assert left == {}, "a circle is among these modules and those that import it"


def test_two_modules_at_most_have_the_same_name() -> None:
    names = Counter(file.name for file in (*PYTHON, *CYTHON) if file.name != "__init__.py")
    assert [name for name, files in names.items() if files > 2] == []


def longest_chain(package: str, above: tuple[str, ...] = ()) -> tuple[str, ...]:
    assert package not in above, f"a circle: {' → '.join((*above, package))}"
    ways = (longest_chain(name, (*above, package)) for name in imports()[package])
    return package, *max(ways, key=len, default=())


@pytest.mark.parametrize("package", PACKAGES)
def test_chains_of_imports_are_short_and_no_circles(package: str) -> None:
    chain = longest_chain(package)
    assert len(chain) <= LONGEST_CHAIN, " → ".join(chain)


def test_beside_the_packages_stand_three_modules() -> None:
    entries = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    # py.typed marks the package as typed for type checkers (PEP 561); it must stand here.
    files = {"errors.py", "__init__.py", "__main__.py", "py.typed"}
    assert {path.name for path in entries if path.is_file()} == files
    # After a package has moved, a checkout keeps its old directory with only bytecode in it.
    directories = {path.parent for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert [path for path in directories if not (path / "__init__.py").is_file()] == []


def test_the_unit_tests_are_where_their_modules_are() -> None:
    below = {path.parent.relative_to(ROOT / "tests/unit") for path in (ROOT / "tests/unit").rglob("*.py")}
    assert [
        str(place) for place in below if not ((PACKAGE / place).is_dir() or (ROOT / "tests" / place).is_dir())
    ] == []


@pytest.mark.parametrize("module", PYTHON, ids=lambda path: str(path.relative_to(PACKAGE)))
class TestModule:
    def test_its_first_line_says_what_it_holds(self, module: Path) -> None:
        said = ast.get_docstring(ast.parse(module.read_text()))
        assert said
        assert module.read_text().startswith('"""')

    def test_its_name_says_something(self, module: Path) -> None:
        assert module.stem not in ("utils", "util", "helpers", "common", "misc")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from kprobe_exporter.web.routes import create_app", ["web"]),
        ("from kprobe_exporter.web import config", ["web/config"]),
        ("from kprobe_exporter.web.config.read import Outcome, read_web_config", ["web/config"] * 2),
        ("import kprobe_exporter.plan.probe as p", ["plan"]),
        ("from kprobe_exporter import errors", ["errors"]),
        ("from kprobe_exporter.errors import StartError", ["errors"]),
        ("def f():\n    from kprobe_exporter.elf import find", ["elf"]),
        ("if TYPE_CHECKING:\n    from kprobe_exporter.elf import find", ["elf"]),
        ('importlib.import_module(f"kprobe_exporter.cli.{name}")', ["cli"]),
        ("import os, kprobe_exporterlike\nfrom pathlib import Path", []),
    ],
)
def test_what_counts_as_an_import_in_python(source: str, found: list[str]) -> None:
    assert [package_named(name) for name in in_python(source)] == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from kprobe_exporter.model.values import Batch", ["model"]),
        ("from kprobe_exporter.source.walk cimport step  # fast", ["source"]),
        ("from kprobe_exporter.web cimport config", ["web/config"]),
        ("import os, kprobe_exporter.plan.probe as p", ["plan"]),
        ("cimport kprobe_exporter.plan.probe", ["plan"]),
        ("cdef int f() except -1:\n    from kprobe_exporter.elf import find\n", ["elf"]),
        ("from kprobe_exporter.model.values import (\n    Batch,\n    Layout,\n)", ["model", "model"]),
        ("from kprobe_exporter.model.values import Batch, \\\n    Layout", ["model", "model"]),
        ('"""Text.\nfrom kprobe_exporter.elf import find\n"""\n# import kprobe_exporter.elf', []),
        ("from libc.string cimport memcpy\nimport sys", []),
    ],
)
def test_what_counts_as_an_import_in_cython(source: str, found: list[str]) -> None:
    assert [package_named(name) for name in in_cython(source)] == found


def test_an_import_of_the_compiled_walk_is_seen() -> None:
    (walk,) = [file for file in CYTHON if file.name == "_pages.pyx"]
    assert {package_named(name) for name in in_cython(walk.read_text())} >= {"model", "source"}


def opens_for_writing(module: Path) -> Iterator[str]:
    """Yield the calls in a module that may write a file."""
    for node in ast.walk(ast.parse(module.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        last = called.rsplit(".", 1)[-1]
        if called == "os.open":
            if not {"os.O_RDONLY", "os.O_PATH"} & {ast.unparse(part) for part in ast.walk(node)}:
                yield called
        elif last in ("write_text", "write_bytes", "touch", "mkdir", "rmdir", "unlink"):
            yield called
        elif last == "open":
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            modes = {a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)}
            if any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes):
                yield called


def test_only_one_module_writes_below_tracefs() -> None:
    """Opened in the wrong way, a definitions file deletes the probes of all programs."""
    writers = {module: set(opens_for_writing(module)) for module in (PACKAGE / "tracefs").glob("*.py")}
    assert {module.name: calls for module, calls in writers.items() if calls} == {
        "files.py": {"os.open", "(self.root / path).mkdir", "(self.root / path).rmdir"},
        # These write through files.py: they call the Tracefs that they are given.
        "instance.py": {"files.mkdir", "files.rmdir"},
        "recording_buffers.py": {"self._files.mkdir", "self._files.rmdir"},
        "marker.py": {"os.open"},  # /dev/null
    }


def test_nothing_else_writes_files() -> None:
    """But for what writes a file that the command line or the configuration names; an archive is made in
    memory."""
    elsewhere = [module for module in PYTHON if package_of(module) != "tracefs"]
    writers = {module.name: calls for module in elsewhere if (calls := set(opens_for_writing(module)))}
    assert writers == {
        "archive.py": {"tarfile.open"},
        "directory.py": {"open", "os.open", "os.unlink", "self.path.mkdir"},  # files of recordings
        "file_access.py": {"open", "temporary.unlink"},
        "lines.py": {"os.open"},  # a file of events
        "server.py": {"path.parent.mkdir"},  # the directory of the socket of sessions
        "tool_run.py": {"Path(f'/proc/{self.pid}/oom_score_adj').write_text"},  # of its own child
        "unix_socket.py": {"path.unlink"},  # its own, or of a process that has ended
    }


def test_only_triggers_are_truncated() -> None:
    """A file of triggers, of an event of an instance: the method refuses every other path."""
    uses = {module.name: module.read_text().count("os.O_TRUNC") for module in PYTHON}
    assert {name: number for name, number in uses.items() if number} == {"files.py": 1}


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


def test_no_module_imports_from_a_test() -> None:
    """What several modules of tests need lives in tests/support."""
    imports = re.compile(
        r"^\s*(?:from tests[\w.]*\.test_\w+ import|from tests[\w.]* import [^\n]*\btest_|import tests)"
    )
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in path.read_text().splitlines()
        if imports.match(line)
    ]
    assert found == []
