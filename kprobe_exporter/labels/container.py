"""``container``: the id of the container that a cgroup is of, empty on the host; ``{container: short}``."""

from kprobe_exporter.identity.containers import container
from kprobe_exporter.model.values import Decoder, Value

SHORT = 12
"""As many digits as ``docker ps`` shows."""


def decoder(options: object) -> Decoder:
    """The whole id of 64 digits, its first twelve for ``short``. The value is a cgroup's path.

    To Prometheus an empty label is one that is not there, which is what a process in no container
    has in cAdvisor's metrics too.
    """
    if options not in (None, "short"):
        raise ValueError("the decoder container takes 'short' or nothing: write 'decode: {container: short}'")
    digits = SHORT if options == "short" else None

    def decode(value: Value) -> str | None:
        if not isinstance(value, bytes):
            return None
        found = container(value)
        return "" if found is None else found.id[:digits]

    return decode
