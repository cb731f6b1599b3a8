"""The image for both processors: one archive in OCI's layout, built of wheels, that runs on each of them."""

import io
import json
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter import __version__
from release import images
from release.payload import HOME
from release.sources import revision
from release.targets import TARGETS, ReleaseError, Target
from tests.deploy import containers
from tests.deploy.containers import in_a_vm, inspect, tool
from tests.support.agent_process import Metrics
from tests.support.readme import reads
from tests.vm import ROOT

ELF_MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64
KERNELS = {"x86_64": "6.12", "aarch64": "6.1-arm64"}


@pytest.fixture(scope="module", autouse=True)
def store() -> Iterator[None]:
    """buildah has its images below build/."""
    containers.needs_containers()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in containers.environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def base() -> str:
    with containers.locked():
        return containers.bases(*(target.debian for target in TARGETS))


@pytest.fixture(scope="module")
def archive(built: list[Path], base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images.build(built[1:], tmp_path_factory.mktemp("image"), base)


@pytest.fixture(scope="module")
def image(archive: Path, target: Target) -> Iterator[str]:
    """A container of a processor's image, which does not run."""
    options = ("--quiet", f"--platform=linux/{target.debian}")
    name = tool("buildah", "from", *options, f"oci-archive:{archive}").stdout.strip()
    yield name
    tool("buildah", "rm", name)


@pytest.fixture(scope="module")
def files(image: str) -> Path:
    return Path(tool("buildah", "mount", image).stdout.strip())


class Layout:
    """The blobs of an archive by their digests, and what they say."""

    def __init__(self, archive: Path) -> None:
        with tarfile.open(archive) as tar:
            self.files = {
                entry.name: file.read() for entry in tar if (file := tar.extractfile(entry)) is not None
            }

    def blob(self, descriptor: Any) -> bytes:
        return self.files["blobs/" + descriptor["digest"].replace(":", "/")]

    def manifests(self) -> dict[str, Any]:
        """The manifest of each platform."""
        [index] = json.loads(self.files["index.json"])["manifests"]
        assert index["annotations"]["org.opencontainers.image.ref.name"] == __version__
        return {
            f"{one['platform']['os']}/{one['platform']['architecture']}": json.loads(self.blob(one))
            for one in json.loads(self.blob(index))["manifests"]
        }


def test_its_index_has_every_processor_and_tells_what_it_is(archive: Path) -> None:
    layout = Layout(archive)
    found = layout.manifests()
    assert found.keys() == {f"linux/{target.debian}" for target in TARGETS}
    for platform, manifest in found.items():
        config = json.loads(layout.blob(manifest["config"]))
        assert f"{config['os']}/{config['architecture']}" == platform
        run = config["config"]
        labels = {key.rpartition(".")[2]: value for key, value in run["Labels"].items()}
        assert (labels["version"], labels["revision"]) == (__version__, revision())
        assert (run["Entrypoint"], run["Cmd"]) == (["python3", "-m", "kprobe_exporter"], ["run"])
        assert (run["User"], run["StopSignal"]) == ("0", "SIGTERM")
        assert run["ExposedPorts"] == {"10435/tcp": {}}


def test_what_it_adds_is_of_the_processor(archive: Path, target: Target) -> None:
    layout = Layout(archive)
    manifest = layout.manifests()[f"linux/{target.debian}"]
    with tarfile.open(fileobj=io.BytesIO(layout.blob(manifest["layers"][-1]))) as layer:
        entries = {entry.name: entry for entry in layer}
        modules = [name for name in entries if name.endswith(".so")]
        assert {f"{HOME}/kprobe_exporter/source/{name}.abi3.so" for name in ("_lines", "_pages")} <= {
            *modules
        }
        for name in modules:
            file = layer.extractfile(name)
            assert file is not None
            header = file.read(20)
            assert header[:4] == b"\x7fELF"
            assert int.from_bytes(header[18:20], "little") == ELF_MACHINES[target.machine], name
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}
    assert [name for name, entry in entries.items() if not entry.issym() and entry.mode & 0o022] == []
    sources = [name for name in entries if name.endswith(".py") and "lib2to3" not in name]
    assert len(sources) > 500
    for name in sources:
        directory, _, module = name.rpartition("/")
        assert f"{directory}/__pycache__/{module.removesuffix('.py')}.cpython-311.pyc" in entries


def test_its_files_are_those_of_the_dockerfile(archive: Path) -> None:
    """`docker build` compiles in the image's first stage; what it copies from there has the same sources."""
    name = tool("buildah", "from", "--quiet", f"oci-archive:{archive}").stdout.strip()
    ours = Path(tool("buildah", "mount", name).stdout.strip())
    theirs = Path(tool("podman", "image", "mount", containers.build()).stdout.strip())
    assert sources(ours) == sources(theirs)
    for place in ("etc/kprobe_exporter/default.yaml", "tracefs"):
        assert (ours / place).is_symlink() == (theirs / place).is_symlink()
        assert (theirs / place).is_symlink() or (theirs / place).is_dir()


def sources(root: Path) -> dict[str, bytes]:
    found = (root / HOME).rglob("*.py")
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


@reads(command="make image")
def test_another_build_gives_the_same_bytes(archive: Path, base: str, tmp_path: Path, command: str) -> None:
    variables = [f"OUTPUT={tmp_path}", f"PYTHON={sys.executable}", f"BASE={base}"]
    subprocess.run([*shlex.split(command), *variables], cwd=ROOT, stdin=subprocess.DEVNULL, check=True)
    assert (tmp_path / archive.name).read_bytes() == archive.read_bytes()


def test_podman_runs_it_from_the_archive(archive: Path) -> None:
    loaded = tool("podman", "pull", "--quiet", f"oci-archive:{archive}").stdout.strip()
    run = ("podman", "run", "--rm", "--network=none", "--cap-drop=ALL", "--read-only", loaded)
    assert tool(*run, "--version").stdout.split()[-1] == __version__
    assert tool(*run, "check", "/etc/kprobe_exporter/default.yaml").stdout.endswith("metrics\n")
    assert inspect(loaded)["Size"] < 120e6


def test_it_serves_on_its_processor(image: str, files: Path, target: Target) -> None:
    """In a VM its command runs with the image's files as its root, without a capability."""
    config = json.loads(tool("buildah", "inspect", image).stdout)["OCIv1"]["config"]
    told = in_a_vm(KERNELS[target.machine], files, config)
    metrics = Metrics(told["metrics"])
    [info] = metrics.labels("kprobe_exporter_build_info")
    assert info["version"] == __version__
    assert metrics.value("kprobe_hits_total", probe="open") > 0
    assert told["status"] == 0
    assert told["after"] == told["before"]


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(images, "python", lambda: "3.99")
    with pytest.raises(ReleaseError, match=r"the image has Python 3\.99: build it with that"):
        images.build([], tmp_path, "")


def test_a_dockerfile_that_is_made_otherwise_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    monkeypatch.setattr(images, "ROOT", tmp_path)
    assert images.last_stage().startswith("ARG BASE\nFROM ${BASE}\nARG VERSION=")
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(ReleaseError, match="last stage"):
        images.last_stage()
