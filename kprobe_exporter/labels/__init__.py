"""The decoders that turn a field into a label's text, one per file. The file's name is the YAML key.

Takes a decoder's options. Gives a function from a field's value to a text, or to None for a value that
it cannot decode.
May import errors, identity and model.
"""

from collections.abc import Callable, Mapping

from kprobe_exporter.identity.pods import Pods
from kprobe_exporter.labels import (
    capability,
    cgroup,
    container,
    errno,
    family,
    file_mode,
    ifname,
    ip,
    ksym,
    majorminor,
    name,
    namespace,
    open_flags,
    pod,
    port,
    process,
    protocol,
    regexp,
    syscall,
    tcp_state,
    user,
    usym,
)
from kprobe_exporter.labels import hex as hex_
from kprobe_exporter.labels import map as map_
from kprobe_exporter.labels import signal as signal_
from kprobe_exporter.model.specs import Decoder

Decoders = Mapping[str, Callable[[object], Decoder]]
"""Each makes a decoder from its options in the YAML, None without any. ValueError says what is wrong."""

DECODERS: Decoders = {
    **process.DECODERS,
    "capability": capability.decoder,
    "cgroup": cgroup.decoder,
    "container": container.decoder,
    "errno": errno.decoder,
    "family": family.decoder,
    "file_mode": file_mode.decoder,
    "hex": hex_.decoder,
    "ifname": ifname.decoder,
    "ip": ip.decoder,
    "ksym": ksym.decoder,
    "majorminor": majorminor.decoder,
    "map": map_.decoder,
    "name": name.decoder,
    "namespace": namespace.decoder,
    "open_flags": open_flags.decoder,
    "pod": pod.decoder,
    "port": port.decoder,
    "protocol": protocol.decoder,
    "regexp": regexp.decoder,
    "signal": signal_.decoder,
    "syscall": syscall.decoder,
    "tcp_state": tcp_state.decoder,
    "user": user.decoder,
    "usym": usym.decoder,
}
"""They suffice to check a configuration."""


def decoders(
    symbol: Callable[[int], bytes], pods: Pods, enum: name.Enum, *, nested: bool = False
) -> Decoders:
    """Return the decoders of a running agent.

    They look up kernel symbols, the pods of this machine, and the enums of the kernel's types. With
    ``nested`` a container in a container counts.
    """
    return {
        **DECODERS,
        "container": container.decoder_with(nested=nested),
        "ksym": ksym.decoder_with(symbol),
        "name": name.decoder_with(enum),
        "namespace": namespace.decoder_with(pods, nested=nested),
        "pod": pod.decoder_with(pods, nested=nested),
    }
