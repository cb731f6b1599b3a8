"""The line above each table: which commit was measured."""

import subprocess
from pathlib import Path

import pytest

from tests.bench.machine import WRITTEN, conditions, revision

GIT = ("git", "-c", "user.name=A", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    for name in ("code.py", WRITTEN):
        (tmp_path / name).write_text("before\n")
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "one"]):
        subprocess.run([*GIT, *command], cwd=tmp_path, check=True)
    return tmp_path


def test_the_commit_is_named(repository: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, check=True, stdout=subprocess.PIPE)
    word, commit = revision(repository).split(" ")
    assert word == "commit"
    assert len(commit) >= 9
    assert head.stdout.decode().startswith(commit)
    assert f", commit {commit}, Linux " in conditions(revision(repository))


@pytest.mark.parametrize("changed", ["code.py", "new.py"])
def test_a_tree_with_changes_is_named_as_such(repository: Path, changed: str) -> None:
    (repository / changed).write_text("after\n")
    assert revision(repository).endswith(" with uncommitted changes")


def test_the_tables_that_a_run_writes_are_no_change(repository: Path) -> None:
    (repository / WRITTEN).write_text("after\n")
    assert revision(repository).count(" ") == 1
