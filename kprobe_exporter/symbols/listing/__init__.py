"""What can be probed: functions and tracepoints of this kernel, functions of a file, as attach strings.

Takes a pattern. Gives the places that match, each with its prototype or fields on request, or a sentence
that says why there are none.
May import btf, elf, errors, grammar, symbols and tracefs.
"""

from kprobe_exporter.symbols.listing.details import Details
from kprobe_exporter.symbols.listing.files import file_places
from kprobe_exporter.symbols.listing.kernel import KernelPlaces, Listed
from kprobe_exporter.symbols.listing.query import Place, Query, parse_query

__all__ = ["Details", "KernelPlaces", "Listed", "Place", "Query", "file_places", "parse_query"]
