"""How each probe could be attached to this kernel, and what its events feed. Pure.

Takes a probe of the configuration and a description of the kernel. Gives a ``ProbePlan``: the
alternatives in order, each with its definition, filter and layout, and the metrics. Nothing is
installed here.
May import btf, config, elf, errors, grammar and model.
"""

from kprobe_exporter.plan.joined import JoinedSpec
from kprobe_exporter.plan.kernel import Kernel, recorded
from kprobe_exporter.plan.metric import fields_used, metric_spec, worst_spec
from kprobe_exporter.plan.probe import (
    Alternative,
    ProbePlan,
    Sample,
    narrowed,
    plan_probe,
    wants_symbols,
    wants_tgid,
)
from kprobe_exporter.plan.tracepoint import cannot_share

__all__ = [
    "Alternative",
    "JoinedSpec",
    "Kernel",
    "ProbePlan",
    "Sample",
    "cannot_share",
    "fields_used",
    "metric_spec",
    "narrowed",
    "plan_probe",
    "recorded",
    "wants_symbols",
    "wants_tgid",
    "worst_spec",
]
