"""The image for every processor: the last stage of the Dockerfile, with the agent's files from its wheels.

Nothing of the image runs while it is made, so that one machine makes it for all processors. buildah does the
rest: it gets the base of each processor, and writes all of them as one index of OCI's image layout.
"""

import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from release import payload, tools
from release.sources import epoch, normalize, pack, revision
from release.targets import BUILD, ROOT, TARGETS, ReleaseError, Target


def build(wheels: Sequence[Path], into: Path, base: str) -> Path:
    """Build the image of each target's wheel, over its part of the index ``base``; return one archive of all.

    Raises ReleaseError if this is not the Python of the base: it would write no bytecode for it.
    """
    ours, theirs = f"{sys.version_info.major}.{sys.version_info.minor}", python()
    if ours != theirs:
        raise ReleaseError(
            f"the image has Python {theirs}: build it with that (make … PYTHON=python{theirs})"
        )
    archive = into / f"kprobe-exporter-{payload.version()}-image.tar"
    BUILD.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=BUILD, prefix="image-")))
        index = f"localhost/{work.name.replace('_', '-')}"
        tools.run("buildah", "manifest", "create", index)
        stack.callback(tools.run, "buildah", "manifest", "rm", index)
        for target, wheel in zip(TARGETS, wheels, strict=True):
            made = _add(index, target, wheel, base, work / target.debian)
            stack.callback(_forget, made)
        layout = work / "layout"
        tools.run("buildah", "manifest", "push", "--all", index, f"oci:{layout}:{payload.version()}")
        normalize(layout)
        pack(layout, archive)
    return archive


def _add(index: str, target: Target, wheel: Path, base: str, context: Path) -> str:
    """Build the image of one processor, add it to the index, and return its id."""
    lay_out(target, wheel, context / "image")
    (context / "Dockerfile").write_text(last_stage())
    identity = context.with_suffix(".id")
    tools.run(
        *("buildah", "bud", "--quiet", f"--platform=linux/{target.debian}", f"--manifest={index}"),
        *(f"--timestamp={epoch()}", f"--build-arg=BASE={base}", f"--build-arg=REVISION={revision()}"),
        *(f"--iidfile={identity}", context),
    )
    return identity.read_text()


def _forget(image: str) -> None:
    """Remove an image from buildah's store, unless something else uses it, as that of an equal build."""
    with suppress(ReleaseError):
        tools.run("buildah", "rmi", image)


def lay_out(target: Target, wheel: Path, tree: Path) -> None:
    """Lay out what the first stage of the Dockerfile makes; bytecode is never compared with its source."""
    lib = tree / payload.HOME
    payload.install_modules(target, wheel, lib, [python()])
    (lib / "sbom.cdx.json").write_bytes((ROOT / "deploy/requirements/sbom.cdx.json").read_bytes())
    (tree / "tracefs").mkdir()
    configuration = tree / "etc/kprobe_exporter/default.yaml"
    configuration.parent.mkdir(parents=True)
    configuration.symlink_to(f"/{payload.HOME}/kprobe_exporter/config/default.yaml")
    tools.run(
        *(sys.executable, "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash"),
        *("-s", tree, "-p", "/", lib),
    )
    normalize(tree)


def last_stage() -> str:
    """The Dockerfile of what is laid out: the last stage, which copies it from the first."""
    _, found, stage = (ROOT / "Dockerfile").read_text().partition("\nFROM ${BASE}\n")
    copied = stage.replace("COPY --from=build /image /\n", "COPY image /\n")
    if not found or copied == stage:
        raise ReleaseError("the last stage of the Dockerfile is not FROM ${BASE}, or does not copy /image")
    return f"ARG BASE\nFROM ${{BASE}}\n{copied}"


def public_base() -> str:
    """The base that the Dockerfile names."""
    [found] = re.findall(r"^ARG BASE=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return str(found)


def python() -> str:
    """The Python of that base."""
    [found] = re.findall(r"/python:(3\.\d+)-", public_base())
    return str(found)
