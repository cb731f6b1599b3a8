"""Checks for `stacks`: the field by which the stacks of a probe are weighed."""

from kprobe_exporter.config.expressions import missing_field
from kprobe_exporter.config.schema import ProbeModel
from kprobe_exporter.config.sites import BUILT_IN, Alternatives
from kprobe_exporter.config.values import NO_STACK, Stacks
from kprobe_exporter.config.wording import quote
from kprobe_exporter.config.yaml_source import Report
from kprobe_exporter.grammar.evaluate import COMPUTED

NOT_WEIGHTS = BUILT_IN - {"return", "duration"}
"""Fields that every event has, and whose sum says nothing."""


def stacks_of(probe: ProbeModel, alternatives: Alternatives, report: Report) -> Stacks | None:
    """Return how the stacks of a probe are counted, None if they are not. Problems go to ``report``."""
    if probe.stacks is None:
        return None
    in_programs = (any(one.target.kind.in_file for one in each.attach.single) for each in alternatives)
    if not probe.stacks.user and alternatives and all(in_programs):
        report(("stacks",), NO_STACK, at_key=True)
    weigh = probe.stacks.weigh
    if weigh is not None and (why := _no_weight(weigh, alternatives)):
        report(("stacks", "weigh"), why)
    return Stacks(weigh, probe.stacks.max, probe.stacks.user)


def _no_weight(name: str, alternatives: Alternatives) -> str | None:
    """Return why the sum of a field is no weight, None if it is one as far as this is known here."""
    if why := missing_field(name, alternatives):
        return why
    if name in NOT_WEIGHTS:
        return f"the sum of {quote(name)} says nothing: weigh by a name of `fetch`, by return or by duration"
    types = [one.fields[name] for one in alternatives]
    if any(found is COMPUTED for found in types):
        return f"{quote(name)} is computed by the agent, and the kernel adds up: weigh by a name of `fetch`"
    if any(found is not None and found.kind not in ("int", "float") for found in types):
        return f"{quote(name)} is no number to add up"
    return None
