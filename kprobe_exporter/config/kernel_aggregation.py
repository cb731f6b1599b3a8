"""Checks for `aggregate: kernel`: hist triggers aggregate only by numbers, in powers of 2 or equal steps."""

from kprobe_exporter.config.metrics import (
    duration_buckets,
    is_fact,
    keeps_powers_of_2,
    labels_of,
    return_buckets,
)
from kprobe_exporter.config.model import Attach, Metric
from kprobe_exporter.config.schema import MetricModel, ProbeModel
from kprobe_exporter.config.sites import Alternatives
from kprobe_exporter.config.wording import listed, quote
from kprobe_exporter.config.yaml_source import Report
from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.evaluate import COMPUTED
from kprobe_exporter.grammar.formula import as_filter
from kprobe_exporter.grammar.lexis import NAME
from kprobe_exporter.model.hist import MAX_LINEAR, BucketForm, bucket_form
from kprobe_exporter.model.records import COMMON_COMM
from kprobe_exporter.model.specs import BY_THREAD, OF_PROGRAM
from kprobe_exporter.model.values import decimal

SECOND = 10**9  # nanoseconds, the unit of durations

MOST_LABELS = 2
"""TRACING_MAP_KEYS_MAX of kernel/trace/tracing_map.h is 3 keys, and a histogram's value is one of them."""

NOT_KEYS = frozenset({"pid", "common_tgid", "caller", "symbol"})
"""Fields that the agent determines for each event, so that hist triggers do not have them."""

WORDS = frozenset({"hitcount", "raw", "stacktrace", "STACKTRACE", "CPU"})
"""Names with another meaning in a hist trigger (kernel/trace/trace_events_hist.c); `cpu` means the same."""

EVENTS = "leave `aggregate` out to have it"


def refuse_probe(probe: ProbeModel, alternatives: Alternatives, report: Report) -> None:
    """Refuse the settings of a probe, except for its metrics, that hist triggers do not support."""
    for one in alternatives:
        if one.attach.target.is_joined and (why := _not_joined(one.attach)):
            report(("aggregate",), f"{why}, so the agent joins {one.attach.target}: {EVENTS}")
    if probe.outstanding is not None:
        report(("outstanding",), f"the kernel does not tell what is open where it aggregates: {EVENTS}")
    if probe.duration_buckets is not None:
        _refuse_buckets(duration_buckets(probe), 1 / SECOND, "duration_buckets", report, offset=1)
    if probe.stack:
        report(("stack",), f"the kernel keeps no stacks where it aggregates: {EVENTS}")
    if probe.stacks is not None and any(one.attach.filter for one in alternatives):
        report(("stacks",), f"the kernel does not filter stacks where it aggregates: {EVENTS}", at_key=True)
    if probe.stacks is not None and probe.stacks.user:
        report(("stacks", "user"), f"the kernel counts no stacks of programs where it aggregates: {EVENTS}")
    if any(one.attach.returns and one.attach.returns.fetch for one in alternatives):
        _refuse_buckets(return_buckets(probe), 1.0, "return_buckets", report)


def _not_joined(attach: Attach) -> str | None:
    """Return why the kernel does not join a call or a pair, None if it does."""
    if any(one.target.kind.in_file for one in attach.single):
        return "a stack pointer of a program is not unique in the kernel's table"
    if attach.again:
        return "the kernel does not join an event with the next one of it"
    if attach.through:
        return "the kernel keeps no times between two events"
    if len(attach.begins) > 1:
        return "the kernel would count twice what two events begin"
    return None


def counts_powers_of_2(probe: ProbeModel, alternatives: Alternatives) -> bool:
    """Return whether the kernel counts by powers of two of what is shown, as a native histogram needs them.

    Those of a duration are of nanoseconds, and seconds are shown.
    """
    if any(one.attach.target.is_joined for one in alternatives):
        return False
    return bucket_form(return_buckets(probe), 1.0) == BucketForm()


def refuse_metric(model: MetricModel, metric: Metric, alternatives: Alternatives, report: Report) -> None:
    """Refuse the settings of a metric that hist triggers do not support, by paths within the metric."""
    if metric.kind == "gauge":
        report(("gauge",), f"the kernel keeps no last value where it aggregates: {EVENTS}")
    if metric.value in ("cpu", "tid", "common_cpu", "common_pid"):
        sentence = f"the kernel adds up what an event carries, which {quote(metric.value)} is not: {EVENTS}"
        report(("value",), sentence)
    elif metric.value not in (None, "duration") and (why := _no_key(metric.value, alternatives)):
        report(("value",), why)
    _refuse_histogram(metric, report)
    if len(metric.labels) > MOST_LABELS:
        report(("labels",), f"the kernel aggregates by {MOST_LABELS} labels at most: {EVENTS}")
    for _, label_model, _, path in labels_of(model):
        if not is_fact(label_model.field, alternatives) and (why := _no_key(label_model.field, alternatives)):
            report(path, why)
    for label in metric.labels:
        if label.decode and label.decode[0].name in {*BY_THREAD, OF_PROGRAM}:
            report(("labels",), f"the kernel does not aggregate by {label.decode[0].name}: {EVENTS}")
    _refuse_where(metric, alternatives, report)


def _refuse_histogram(metric: Metric, report: Report) -> None:
    """Refuse bounds that the kernel does not have, and a native histogram of other bounds than it needs."""
    if metric.value != "duration":
        _refuse_buckets(metric.buckets or (), metric.scale, "buckets", report)
    else:
        scale = float(decimal(metric.scale) / SECOND)
        _refuse_buckets(metric.buckets or (), scale, "buckets", report, offset=1)
    if metric.native and metric.value == "duration":
        report(("native",), f"the kernel's buckets are powers of 2 of nanoseconds, not of seconds: {EVENTS}")
    elif metric.native and not keeps_powers_of_2(metric.scale):
        sentence = "the kernel's buckets are powers of 2 of the value, a native histogram's of the product"
        report(("native",), f"{sentence}: let scale be a power of 2, or {EVENTS}")
    elif metric.native and bucket_form(metric.buckets or (), metric.scale) != BucketForm():
        report(("native",), f"a native histogram needs powers of 2: write these buckets, or {EVENTS}")


def _no_key(field: str, alternatives: Alternatives) -> str | None:
    """Return why hist triggers cannot use a field as a key, as far as this is known without the kernel."""
    if not NAME.fullmatch(field) or any(one.fields.get(field) is COMPUTED for one in alternatives):
        return f"the kernel computes nothing where it aggregates: {EVENTS}"
    if field in ("comm", COMMON_COMM):  # as a value, it is refused as text
        return None
    if field in NOT_KEYS:
        return f"the kernel does not aggregate by {quote(field)}, which the agent finds out: {EVENTS}"
    if field in WORDS:
        return f"{quote(field)} is a word of the kernel's hist triggers: fetch it under another name"
    for one in alternatives:
        known = one.fields.get(field)
        if known is not None and known.kind not in ("int", "cpu"):
            return f"the kernel aggregates by numbers and `comm`, {quote(field)} is neither: {EVENTS}"
    return None


def _refuse_where(metric: Metric, alternatives: Alternatives, report: Report) -> None:
    """Refuse conditions that the trigger, which evaluates them on the kernel's event, does not support."""
    try:
        by_fields, by_labels = metric.where_parts
    except GrammarError:  # it is reported
        return
    if by_labels and (fields := by_labels.fields - metric.selecting):
        sentence = (
            f"the kernel compares {quote(min(fields))}, and the agent the labels: write && between them"
        )
        report(("where",), f"{sentence}, or {EVENTS}")
    if by_fields is None:
        return
    try:
        parts = as_filter(by_fields).comparisons
    except GrammarError as error:
        report(("where",), f"{error.message}: {EVENTS}", column=error.column)
        return
    returned = [one.attach.returns for one in alternatives]
    guessed = any(returns and (returns.wide or returns.pointer) for returns in returned)
    for part in parts:
        if part.name in NOT_KEYS:
            why = f"the kernel does not know {quote(part.name)} where it aggregates: {EVENTS}"
        elif any(part.name in one.attach.absent for one in alternatives):
            why = f"{quote(part.name)} is null in an alternative, and the kernel has to compare it: {EVENTS}"
        elif any(one.fields.get(part.name) is COMPUTED for one in alternatives):
            why = f"the kernel computes nothing where it aggregates: {EVENTS}"
        elif isinstance(part.value, float) and part.name != "duration":
            why = f"the kernel compares no fractions where it aggregates: {EVENTS}"
        elif part.name == "return" and guessed:
            why = "the kernel compares the whole register: say that it `returns` int, ssize_t or the like"
        else:
            continue
        report(("where",), why, column=part.column)


def _refuse_buckets(
    bounds: tuple[float, ...], scale: float, key: str, report: Report, offset: int = 0
) -> None:
    """Refuse bounds above 0 that, divided by ``scale``, are neither powers of two nor a few equal steps.

    Bounds up to 0 are exact, because each value up to 0 is counted separately.
    """
    if bucket_form(bounds, scale, offset) is not None:
        return
    wrong = [f"{bound:g}" for bound in bounds if bound > 0 and bucket_form((bound,), scale) != BucketForm()]
    several = "are not powers" if len(wrong) > 1 else "is not a power"
    shown = listed(wrong[:3]).replace(" or ", " and ") + (" and others" if len(wrong) > 3 else "")
    sentence = f"the kernel's buckets are powers of 2 of the value: {shown} {several} of 2"
    if offset:
        sentence = f"the kernel's buckets are powers of 2 of nanoseconds: {shown} s {several} of 2"
        report((key,), f"{sentence}, and equal steps begin at 0, {MAX_LINEAR} at most")
    else:
        report((key,), f"{sentence}, and equal steps end one below a multiple, {MAX_LINEAR} at most")
