"""Configuration and kernel together: how each probe could be attached, and what its events feed.

Pure: what the kernel is like is handed in. Installing is the next step's.
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
