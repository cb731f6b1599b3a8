"""docs/kernels.md: what each shipped configuration settles on with each saved kernel of the fixtures."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Config
from kprobe_exporter.diagnose.dry_run import DryRunRow, look_each
from kprobe_exporter.diagnose.saved_kernel import load as load_kernel
from kprobe_exporter.labels import DECODERS
from tests.reference.markdown import Template, code, table

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = (DEFAULT, *sorted((ROOT / "examples").rglob("*.yaml")))


def series(path: Path) -> str:
    """Return the series of the kernel that a fixture is of, such as 6.12."""
    return path.name.removesuffix(".tar.xz")


def _order(path: Path) -> tuple[list[int], str]:
    version, _, flavour = series(path).partition("-")
    return [int(part) for part in re.findall(r"\d+", version)], flavour


KERNELS = tuple(sorted((ROOT / "tests/fixtures/kernels").glob("*.tar.xz"), key=_order))


@cache
def shipped(path: Path) -> Config:
    """Return a shipped configuration, with the probes switched on that it has switched off."""
    config = load([path], DECODERS)
    return replace(config, probes=tuple(replace(probe, enabled=True) for probe in config.probes))


@cache
def rows(kernel: Path) -> Mapping[Path, list[DryRunRow]]:
    """Return, by configuration, what each probe settles on with a saved kernel."""
    configs = [shipped(path) for path in CONFIGURATIONS]
    found = look_each(configs, load_kernel(kernel).kernel, lambda: True, programs=False)
    return dict(zip(CONFIGURATIONS, found, strict=True))


def document() -> str:
    return Template("kernels.md").filled({"kernels": "\n\n".join(map(_section, CONFIGURATIONS))})


def _section(path: Path) -> str:
    """Return the table of one configuration, and the reasons for what is down."""
    by_kernel = {series(kernel): {row.probe: row for row in rows(kernel)[path]} for kernel in KERNELS}
    probes = dict.fromkeys(name for found in by_kernel.values() for name in found)
    first = {probe.name: str(probe.attach[0].target) for probe in shipped(path).probes}
    cells = [
        [
            code(name),
            code(first[name]) if name in first else "a match of a pattern",
            *(_cell(found.get(name), first.get(name, "")) for found in by_kernel.values()),
        ]
        for name in probes
    ]
    shown = table(["probe", "first alternative", *by_kernel], cells)
    return "\n\n".join([f"## {path.relative_to(ROOT)}", shown, *_reasons(by_kernel)])


def _cell(row: DryRunRow | None, first: str) -> str:
    if row is None:
        return "no match"
    if row.state in ("down", "absent"):
        return f"**{row.state}**"
    if not row.plan:
        return "*program*"
    plan = row.plan if row.state == "up" else f"{row.plan} ({row.state})"
    return plan if row.target == first or not first else f"{plan}, {code(row.target)}"


def _reasons(by_kernel: Mapping[str, Mapping[str, DryRunRow]]) -> Iterator[str]:
    """Yield a list of why probes are down, each reason with its kernels."""
    kernels: dict[tuple[str, str], list[str]] = {}
    for name, found in by_kernel.items():
        for row in found.values():
            if row.state in ("down", "absent"):
                kernels.setdefault((row.probe, "; ".join(row.why)), []).append(name)
    if kernels:
        yield "\n".join(
            f"- {code(probe)} on {', '.join(where)}: {reason}" for (probe, reason), where in kernels.items()
        )
