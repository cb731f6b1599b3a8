"""The compiled walk, as type checkers see it."""

from collections.abc import Collection, Iterable, Mapping

from kprobe_exporter.model.aggregation import Recipe, RecordFilter
from kprobe_exporter.model.joins import Joins
from kprobe_exporter.model.record_layout import Geometry, Shape, StackLayouts
from kprobe_exporter.model.records import Batch
from kprobe_exporter.source.values import Buffer, Names

class PageParser:
    compiled: bool
    time: int
    def __init__(
        self,
        geometry: Geometry,
        shapes: Iterable[Shape],
        names: Names,
        stacks: StackLayouts = ...,
        tgid: bool = False,
        recipes: Mapping[int, Recipe] | None = None,
        filters: Mapping[int, RecordFilter] | None = None,
        joins: Joins | None = None,
        of_all_threads: Collection[int] = ...,
        most_open: int | None = None,
    ) -> None: ...
    def set_own_threads(self, tids: Collection[int]) -> None: ...
    def feed(self, page: Buffer, cpu: int) -> None: ...
    def pull(self, fd: int, cpu: int, pages: int) -> int: ...
    def take(self) -> Batch: ...
    def join(self, batch: Batch | None, until: int | None = None) -> None: ...
    def drop(self, layout_id: int) -> None: ...
    def resume_from(self, before: PageParser) -> None: ...
    @property
    def open(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def has_losses(self) -> bool: ...
    @property
    def waiting(self) -> int: ...
