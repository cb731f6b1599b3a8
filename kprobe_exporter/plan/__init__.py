"""Configuration and kernel together: how each probe could be attached, and what its events feed. Pure.

Takes a probe of the configuration and a description of the kernel. Gives a ``ProbePlan``: the
alternatives in order, each with its definition, filter and layout, and the metrics. Installing is the
next step's.
May import btf, config, elf, errors, grammar and model.
"""

from kprobe_exporter.plan.joined import JoinedSpec
from kprobe_exporter.plan.metric import fields_used, metric_spec
from kprobe_exporter.plan.probe import Kernel, ProbePlan, plan_probe, wants_symbols, wants_tgid

__all__ = [
    "JoinedSpec",
    "Kernel",
    "ProbePlan",
    "fields_used",
    "metric_spec",
    "plan_probe",
    "wants_symbols",
    "wants_tgid",
]
