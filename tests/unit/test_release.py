"""`make release`: what keeps a version from being released, its checksums and its tag."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kprobe_exporter import __version__ as NOW
from release import __main__ as command
from release import version
from release.targets import ROOT, ReleaseError

CHANGES = (
    f"# Changes\n\n## {NOW} (2026-11-26)\n\n- `run`: the agent.\n\n## 0.0.9 (2026-01-01)\n\n- A trial.\n"
)


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    run = subprocess.run(["git", "-C", root, *who, *arguments], capture_output=True, text=True, check=True)
    return run.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose version may be released."""
    for name in version.PLACES:
        copy = tmp_path / "checkout" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    root = tmp_path / "checkout"
    (root / "CHANGELOG.md").write_text(CHANGES)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "All")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.com")
    return root


def test_a_version_that_is_ready(checkout: Path) -> None:
    version.check(NOW, checkout)
    assert version.tag(NOW, checkout) == f"v{NOW}"
    assert git(checkout, "cat-file", "-t", f"v{NOW}") == "tag"
    assert git(checkout, "tag", "--list", "--format=%(contents)").split("\n\n") == [
        f"kprobe_exporter {NOW}",
        "- `run`: the agent.",
    ]


def test_a_version_is_released_once(checkout: Path) -> None:
    version.tag(NOW, checkout)
    with pytest.raises(ReleaseError, match=f"The tag v{re.escape(NOW)} is there"):
        version.check(NOW, checkout)


@pytest.mark.parametrize("number", ["1.2", "v1.2.3", "1.2.3-rc1", "1.2.3\n", "--help"])
def test_no_version(number: str) -> None:
    with pytest.raises(ReleaseError, match="is no version"):
        version.check(number)


@pytest.mark.parametrize("name", version.PLACES)
def test_a_file_that_has_another_version(checkout: Path, name: str) -> None:
    file = checkout / name
    file.write_text(file.read_text().replace(NOW, "0.0.9"))
    git(checkout, "commit", "--all", "--quiet", "--message", "Not this one")
    with pytest.raises(ReleaseError, match=rf"\A{re.escape(name)} has the version 0.0.9, not {NOW}\.\Z"):
        version.check(NOW, checkout)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (f"## {NOW} (2026-11-26)", "## Unreleased", 'begins with the section "Unreleased"'),
        (f"## {NOW} (2026-11-26)", f"## {NOW}", "name it"),
        ("- `run`: the agent.\n", "", f"tells no change of {NOW}"),
    ],
)
def test_a_changelog_that_is_not_ready(checkout: Path, before: str, after: str, said: str) -> None:
    (checkout / "CHANGELOG.md").write_text(CHANGES.replace(before, after))
    git(checkout, "commit", "--all", "--quiet", "--message", "Changes")
    with pytest.raises(ReleaseError, match=said):
        version.check(NOW, checkout)


def test_everything_that_is_wrong_is_told_at_once(checkout: Path) -> None:
    (checkout / "new").touch()
    with pytest.raises(ReleaseError) as refusal:
        version.check("9.8.7", checkout)
    told = str(refusal.value).splitlines()
    assert len(told) == len(version.PLACES) + 2
    assert told[-1] == "There are changes that no commit has: ?? new."


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("b", "a")]
    for file in files:
        file.write_text(file.name)
    sums = command.checksums(files)
    assert re.findall(r"  (.+)$", sums.read_text(), re.MULTILINE) == ["a", "b"]
    run = subprocess.run(["sha256sum", "--check", "--strict", sums.name], cwd=tmp_path, check=False)
    assert run.returncode == 0


def test_what_is_not_ready_is_neither_built_nor_tagged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "build", lambda *_: pytest.fail("it builds"))
    assert command.main(["--output", str(tmp_path), "release", "9.8.7"]) == 1
    assert "pyproject.toml has the version" in capsys.readouterr().err


def test_a_release_has_its_sbom_and_checksums_of_all(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def built(_: str, into: Path, base: str) -> list[Path]:
        into.mkdir()
        (into / "a.whl").write_text("wheel")
        return [into / "a.whl"]

    monkeypatch.setattr(command, "build", built)
    for name in ("check", "tag"):
        function = getattr(version, name)
        monkeypatch.setattr(version, name, lambda number, function=function: function(number, checkout))
    into = tmp_path / "dist"
    assert command.main(["--output", str(into), "release", NOW]) == 0
    sbom = f"kprobe_exporter-{NOW}.cdx.json"
    assert {file.name for file in into.iterdir()} == {"a.whl", sbom, command.SUMS}
    assert re.findall(r"  (.+)$", (into / command.SUMS).read_text(), re.MULTILINE) == ["a.whl", sbom]
    assert f"git push origin v{NOW}" in capsys.readouterr().err
    assert command.main(["--output", str(into), "release", NOW]) == 1
    assert "The tag" in capsys.readouterr().err
