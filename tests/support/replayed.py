"""What the parser of saved text reads."""

from kprobe_exporter.model.records import VALUES, Layout, Record
from kprobe_exporter.model.values import Value
from kprobe_exporter.replay.parser import SavedBatch, SavedParser


class Read:
    """Everything that the parser gives for pieces of text."""

    def __init__(self, *pieces: bytes) -> None:
        self.layouts: list[Layout] = []
        parser, batch = SavedParser(self.layouts.append), SavedBatch()
        for data in (*pieces, None):
            more = parser.finish() if data is None else parser.feed(data)
            batch.cut += [number + len(batch.records) for number in more.cut]
            batch.records += more.records
            batch.stacks += more.stacks
            for name in ("unparsed", "lost", "lines", "ambiguous", "swallowed"):
                setattr(batch, name, getattr(batch, name) + getattr(more, name))
        self.batch = batch

    def layout(self, record: Record) -> Layout:
        return self.layouts[record[0]]

    @property
    def events(self) -> list[tuple[str, dict[str, Value]]]:
        """The names and arguments of the events."""
        return [
            (layout.event, dict(zip((arg.name for arg in layout.args), record[VALUES:], strict=True)))
            for record in self.batch.records
            for layout in [self.layout(record)]
        ]
