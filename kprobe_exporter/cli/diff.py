"""``diff``: shows the differences of two saved kernels, and the probes that they affect."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click

from kprobe_exporter.cli.options import config_option
from kprobe_exporter.config.load import load
from kprobe_exporter.diagnose.kernel_diff import (
    SUBJECTS,
    NameDifference,
    ProbeDifference,
    compare,
    compare_probes,
)
from kprobe_exporter.diagnose.saved_kernel import load as load_kernel
from kprobe_exporter.errors import UsageError, counted, one_line
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.symbols.resolve import matcher
from kprobe_exporter.tracefs.kernel_files import KernelFiles
from kprobe_exporter.util.progress import progress


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter doctor --save 6.1.tar.xz
  kprobe-exporter diff 6.1.tar.xz 6.12.tar.xz
  kprobe-exporter diff 6.1.tar.xz 6.12.tar.xz /etc/kprobe_exporter/
  kprobe-exporter diff --list tracepoints 6.1.tar.xz 6.12.tar.xz
  kprobe-exporter diff --list functions --match 'tcp_*' 6.1.tar.xz 6.12.tar.xz
  kprobe-exporter diff --json 6.1.tar.xz 6.12.tar.xz probes.yaml | jq .probes
""",
)
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.argument("arguments", type=click.Path(path_type=Path), nargs=-1, metavar="[FILE|DIR]...")
@config_option("The same as a FILE argument, as 'run' takes it.")
@click.option(
    "--list",
    "listed",
    type=click.Choice([*SUBJECTS]),
    multiple=True,
    help="List the names that differ, with - for removed, + for added and ~ for changed.",
)
@click.option(
    "--match", default="*", metavar="PATTERN", help="Compare only the names that match, as 'tcp_*'."
)
@click.option("--json", "as_json", is_flag=True, help="All differences as one JSON object.")
def diff(
    old: Path,
    new: Path,
    arguments: tuple[Path, ...],
    paths: tuple[Path, ...],
    listed: tuple[str, ...],
    match: str,
    as_json: bool,
) -> None:
    """Compare the kernels OLD and NEW, which 'doctor --save FILE' saved.

    It counts the functions, the tracepoints, their fields and the members of structures that were removed,
    added or changed. Given a configuration FILE, it shows the probes that NEW would attach elsewhere, collect
    in another way, or not attach. It reads nothing of this machine and needs no rights. A saved kernel
    contains no programs, so probes in programs are alike.

    The exit status is 0 without differences and 1 with some: of the probes if a configuration is
    given, else of the kernels.
    """
    kernels = load_kernel(old).kernel, load_kernel(new).kernel
    files = (*arguments, *paths)
    config = load(files, DECODERS) if files else None
    matches = matcher(match)
    with progress() as show:
        found = {}
        for subject, names in SUBJECTS.items():
            show(f"comparing {subject}")
            before, after = (_matching(names(kernel), matches) for kernel in kernels)
            found[subject] = compare(before, after)
        show("planning the probes")
        probes = compare_probes(config, *kernels) if config is not None else []
    if match != "*" and not any(found.values()):
        raise UsageError(f"no name that differs matches '{one_line(match)}': try '*{one_line(match)}*'.")
    if as_json:
        click.echo(json.dumps(_as_json(kernels, found, probes), indent=2))
    else:
        click.echo("\n".join(_lines(kernels, found, probes, listed, configured=config is not None)))
    differs = any(one.differs for one in probes) if config is not None else any(found.values())
    sys.exit(1 if differs else 0)


def _matching(names: Mapping[str, str], matches: Callable[[str], bool]) -> dict[str, str]:
    return {name: text for name, text in names.items() if matches(name)}


def _lines(
    kernels: tuple[KernelFiles, KernelFiles],
    found: Mapping[str, list[NameDifference]],
    probes: list[ProbeDifference],
    listed: Iterable[str],
    *,
    configured: bool,
) -> list[str]:
    old, new = (one_line(f"{kernel.release} {kernel.machine}") for kernel in kernels)
    lines = [f"{old} -> {new}", "", f"{'':<12}{'removed':>9}{'added':>9}{'changed':>9}"]
    for subject, differences in found.items():
        marks = [one.mark for one in differences]
        lines.append(f"{subject:<12}" + "".join(f"{marks.count(mark):>9,}" for mark in "-+~"))
    for subject in listed:
        lines += ["", f"{subject}:", *map(_line, found[subject])]
    if configured:
        lines += ["", *_probe_lines(probes)]
    return lines


def _line(one: NameDifference) -> str:
    text = f" {one.old} -> {one.new}" if one.mark == "~" else ""
    return f"{one.mark} {one_line(one.name)}{one_line(text)}"


def _probe_lines(probes: list[ProbeDifference]) -> list[str]:
    """Return two lines for each probe that differs, and a summary."""
    different = [one for one in probes if one.differs]
    lines = []
    for one in different:
        for mark, row in (("-", one.old), ("+", one.new)):
            why = f"  ({'; '.join(row.why)})" if row.why else ""
            lines.append(one_line(f"{mark} {one.probe}: {row.state} {row.target} {row.plan}".rstrip() + why))
    return [
        *lines,
        f"{counted(len(probes), 'probe')}: {len(different)} differ, {len(probes) - len(different)} alike",
    ]


def _as_json(
    kernels: tuple[KernelFiles, KernelFiles],
    found: Mapping[str, list[NameDifference]],
    probes: list[ProbeDifference],
) -> dict[str, object]:
    old, new = ({"kernel": kernel.release, "machine": kernel.machine} for kernel in kernels)
    return {
        "old": old,
        "new": new,
        **{subject: [one._asdict() for one in differences] for subject, differences in found.items()},
        "probes": [
            {
                "probe": one.probe,
                "differs": one.differs,
                "old": one.old.as_object(),
                "new": one.new.as_object(),
            }
            for one in probes
        ],
    }
