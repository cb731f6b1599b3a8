"""How the stacks of a probe are counted: by a hist trigger of the kernel, or by the agent from each event."""

from dataclasses import replace

from kprobe_exporter.config.values import Attach, Probe
from kprobe_exporter.model.hist import HistKey
from kprobe_exporter.model.specs import ProbeSpec, Unsupported
from kprobe_exporter.model.stacks import StackTable
from kprobe_exporter.plan.kernel import MIN_ROWS, no_error


def recorded(probe: Probe, *, counted_by_kernel: bool) -> Probe:
    """Return the probe as it is planned: with each event's stack recorded, if the agent counts its stacks.

    It does so of calls and pairs, whose duration only the agent knows, where there are no hist triggers,
    where each stack is recorded anyway, and with the program's stacks, which no trigger knows.
    """
    if probe.stacks is None:
        return probe
    joined = any(attach.end is not None for attach in probe.attach)
    if not (joined or probe.stacks.user) and counted_by_kernel:
        return probe
    of_kernel = any(not one.target.kind.in_file for attach in probe.attach for one in attach.single)
    return replace(probe, stack=probe.stack or of_kernel, user_stack=probe.stacks.user)


def with_trigger(way: ProbeSpec | Unsupported, probe: Probe, attach: Attach) -> ProbeSpec | Unsupported:
    """Return the way with the hist trigger that counts its stacks.

    A trigger sees each firing, whatever the event's filter is, so it repeats the kernel's filter.
    """
    if probe.stacks is None or probe.stack or probe.user_stack or isinstance(way, Unsupported):
        return way
    if way.file is None and way.residual_filter is not None and way.filter is None:
        return Unsupported(way.target, "the kernel counts its stacks, and cannot evaluate its filter")
    value, condition = probe.stacks.weigh, way.filter
    if value is not None:
        if way.file is None:
            value = attach.fetch.get(value, value)
        # The kernel adds up bits: an error, a negative number, would be an immense one.
        returns = way.layout.returns
        wide = probe.stacks.weigh == "return" and returns is not None and returns.wide
        positive = no_error(f"{value} >= 0", HistKey(value, value), wide)
        condition = f"({condition}) && ({positive})" if condition else positive
    # A table that is nearly full finds a place for a new key only by trying many.
    size = max(MIN_ROWS, 1 << (2 * probe.stacks.most - 1).bit_length())
    because = f"{way.because}; a hist trigger counts its stacks"
    return replace(way, stack_table=StackTable(value, condition, size), because=because)
