"""``container``: the id of a cgroup's container, empty on the host; ``{container: short}``."""

from collections.abc import Callable

from kprobe_exporter.identity.containers import container
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import SHORT_ID, Value


def decoder_with(*, nested: bool) -> Callable[[object], Decoder]:
    """Return a factory of decoders to the id's 64 digits, or the first 12 for ``short``.

    The value is a cgroup's path. Prometheus treats an empty label as a missing one. cAdvisor's metrics, too,
    have no such label for a process outside of containers.
    """

    def decoder(options: object) -> Decoder:
        if options not in (None, "short"):
            raise ValueError(
                "the decoder container takes 'short' or nothing: write 'decode: {container: short}'"
            )
        digits = SHORT_ID if options == "short" else None

        def decode(value: Value) -> str | None:
            if not isinstance(value, bytes):
                return None
            found = container(value, nested=nested)
            return "" if found is None else found.id[:digits]

        return decode

    return decoder


decoder = decoder_with(nested=False)
"""For a configuration that is only checked."""
