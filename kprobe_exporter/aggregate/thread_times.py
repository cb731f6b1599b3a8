"""Makes the parts of threads' time the sums of a probe's metrics."""

from collections.abc import Sequence

from kprobe_exporter.aggregate.stack_classes import UNACCOUNTED, class_of
from kprobe_exporter.aggregate.stack_counts import cut
from kprobe_exporter.model.aggregation import Tally
from kprobe_exporter.model.records import Batch, Join
from kprobe_exporter.model.specs import LabelSpec
from kprobe_exporter.model.stacks import StackTally, Weight


class TimeTallies:
    """Turns the parts of threads' time in batches into tallies.

    The first metric of the probe has the ``labels``: facts of a thread, and the class of what it did. The
    second one is the unaccounted time. The stacks of sleeps begin with their class. The hits of the probe are
    the events that begin or end a part.
    """

    def __init__(self, join: Join, labels: Sequence[LabelSpec]) -> None:
        self._layout_id = join.layout.layout_id
        self._begins, self._end = [one.layout_id for one in join.begins], join.end.layout_id
        self._by_thread = [label.field == "tid" for label in labels]

    def take(self, batch: Batch) -> None:
        """Replace the parts of a batch by tallies."""
        for part in batch.thread_times:
            class_ = class_of(part)
            key = tuple(part.tid if by_thread else class_.encode() for by_thread in self._by_thread)
            made = [Tally(self._layout_id, 0, key, 1, part.nanoseconds)]
            if class_ == UNACCOUNTED:
                made.append(Tally(self._layout_id, 1, (), 1, part.nanoseconds))
            batch.by_thread += [(part.moment, one) for one in made]
            if part.stack is not None:
                stack, weight = (*cut(part.stack), class_.encode()), Weight(1, part.nanoseconds)
                batch.stack_tallies.append(StackTally(self._layout_id, stack, 0, (), weight))
        batch.thread_times.clear()
        begun = sum(batch.arrived.pop(layout_id, 0) for layout_id in self._begins)
        batch.arrived.pop(self._end, None)
        if begun:
            batch.begun[self._layout_id] = batch.begun.get(self._layout_id, 0) + begun
