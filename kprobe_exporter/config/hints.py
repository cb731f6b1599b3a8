"""Warnings about what is valid and probably not meant."""

import re
from collections.abc import Iterable, Mapping

from kprobe_exporter.config.sites import Alternative, Report
from kprobe_exporter.config.values import Metric
from kprobe_exporter.config.wording import quote

_MEMBER = re.compile(r"\+\w+\((?P<base>.+)\):(?P<type>\w+)(\[\d+\])?")


def hint_at_ports(metric: Metric, alternatives: Iterable[Alternative], report: Report) -> None:
    """Warn of a plain 16-bit label that is read from the structure of an address: it is in network order."""
    addresses = [label.field for label in metric.labels if any(step.name == "ip" for step in label.decode)]
    plain = {label.field for label in metric.labels if not label.decode}
    for field in sorted(plain & _beside(addresses, alternatives)):
        report.warn(
            ("labels",),
            f"{quote(field)} has 16 bits and lies beside an address: if it is a port, it is in network order:"
            f" {{field: {field}, decode: port}}",
        )


def _beside(addresses: Iterable[str], alternatives: Iterable[Alternative]) -> set[str]:
    """Return the 16-bit fields that some alternative reads from the structure that holds an address."""
    found: set[str] = set()
    for one in alternatives:
        for part in one.attach.single:
            members = _members(part.fetch)
            bases = {members[name][0] for name in addresses if name in members}
            found |= {name for name, (base, type_) in members.items() if base in bases and type_ in SHORT}
    return found


SHORT = frozenset({"u16", "s16", "x16"})


def _members(fetch: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the base and the type of each fetched member of a structure."""
    parsed = {name: _MEMBER.fullmatch(text.replace(" ", "")) for name, text in fetch.items()}
    return {name: (found["base"], found["type"]) for name, found in parsed.items() if found}
