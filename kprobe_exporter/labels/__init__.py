"""The decoders that turn a field into a label's text: one a file, the file's name is the YAML key."""

from collections.abc import Callable, Mapping

from kprobe_exporter.labels import errno, ifname, ip, ksym, majorminor, regexp, syscall, user
from kprobe_exporter.labels import hex as hex_
from kprobe_exporter.labels import map as map_
from kprobe_exporter.labels import signal as signal_
from kprobe_exporter.model import Decoder

DECODERS: Mapping[str, Callable[[object], Decoder]] = {
    "errno": errno.decoder,
    "hex": hex_.decoder,
    "ifname": ifname.decoder,
    "ip": ip.decoder,
    "ksym": ksym.decoder,
    "majorminor": majorminor.decoder,
    "map": map_.decoder,
    "regexp": regexp.decoder,
    "signal": signal_.decoder,
    "syscall": syscall.decoder,
    "user": user.decoder,
}
"""Each makes a decoder from the options in the YAML, None without any; ValueError says what is wrong.

Those that ask the kernel what it has (``ksym``) know nothing yet: the agent has its own.
"""
