"""A version to release: it stands in every file that names it, has its changes, and is not yet tagged.

Nothing here publishes anything: a tag is made in this clone, and pushed by whoever decides that.
"""

import re
from pathlib import Path

from release.sources import git
from release.targets import ROOT, ReleaseError

_IMAGE = r"(?:/kprobe-exporter:|newTag: )([0-9][^ \n]*)"

PLACES = {
    "Dockerfile": r"^ARG VERSION=(.+)$",
    "deploy/docker-compose.yml": r"^ +image: kprobe-exporter:(.+)$",
    "deploy/helm/kprobe-exporter/Chart.yaml": r"^(?:appVersion|version): (.+)$",
    "deploy/kubernetes/README.md": _IMAGE,
    "deploy/kubernetes/base/kustomization.yaml": r"^ +newTag: (.+)$",
    "deploy/kubernetes/overlays/production/kustomization.yaml": _IMAGE,
    "kprobe_exporter/__init__.py": r'^__version__ = "(.+)"$',
    "pyproject.toml": r'^version = "(.+)"$',
}
"""Where the version stands, each with a pattern of which the group is the version."""


def check(version: str, root: Path = ROOT) -> None:
    """Raise ReleaseError with everything that is to be mended before this version is released."""
    if not re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", version):
        raise ReleaseError(f"{version!r} is no version: it is three numbers such as 1.2.3, or 1.2.3rc1.")
    wrong = [*_elsewhere(version, root)]
    try:
        changes(version, root)
    except ReleaseError as error:
        wrong.append(str(error))
    if changed := git("status", "--porcelain", root=root):
        wrong.append(f"There are changes that no commit has: {', '.join(changed.splitlines())}.")
    if git("tag", "--list", _name(version), root=root):
        wrong.append(f"The tag {_name(version)} is there: a version is released once.")
    if wrong:
        raise ReleaseError("\n".join(wrong))


def changes(version: str, root: Path = ROOT) -> str:
    """The lines of a version in CHANGELOG.md, whose newest section it has to be.

    Raises ReleaseError where that is another one, has no date, or is empty.
    """
    text = (root / "CHANGELOG.md").read_text()
    title, _, rest = text.partition("\n## ")[2].partition("\n")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", title):
        raise ReleaseError(
            f'CHANGELOG.md begins with the section "{title}": name it "{version} (YYYY-MM-DD)", with the day'
            " of the release."
        )
    lines = rest.partition("\n## ")[0].strip()
    if not lines:
        raise ReleaseError(f"CHANGELOG.md tells no change of {version}.")
    return lines


def tag(version: str, root: Path = ROOT) -> str:
    """Tag the commit with the version and its changes, and return the tag's name."""
    message = f"kprobe_exporter {version}\n\n{changes(version, root)}"
    git("tag", "--annotate", "--cleanup=verbatim", "--message", message, _name(version), root=root)
    return _name(version)


def _name(version: str) -> str:
    return f"v{version}"


def _elsewhere(version: str, root: Path) -> list[str]:
    """A sentence for each file that names another version, or none."""
    wrong = []
    for name, pattern in PLACES.items():
        found = set(re.findall(pattern, (root / name).read_text(), re.MULTILINE))
        if found != {version}:
            wrong.append(f"{name} has the version {', '.join(sorted(found)) or 'nowhere'}, not {version}.")
    return wrong
