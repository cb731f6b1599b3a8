"""Tables of hist triggers as kernels print them."""

NAMES = (
    b"# event histogram\n#\n"
    b"# trigger info: hist:keys=comm,r32:vals=hitcount:sort=hitcount:size=128 if r32 < 0 [active]\n#\n\n"
    b"{ comm: x }\nhitcount: 9                                   , r32: 18446744073709551614 }"
    b" hitcount:          3\n"
    b"{ comm: abc                                               , r32: 18446744073709551614 }"
    b" hitcount:          3\n"
    b"\nTotals:\n    Hits: 6\n    Entries: 2\n    Dropped: 0\n"
)


POWERS = (
    b"# event histogram\n#\n"
    b"# trigger info: hist:keys=common_cpu,common_pid,return.log2:vals=hitcount,return:sort=hitcount:size=256"
    b" if CPU >= 0 && return > 0 && return < 4294967290 [active]\n#\n\n"
    b"{ common_cpu:          1, common_pid:        259, return: ~ 2^4  } hitcount:         11"
    b"  return:        154\n"
    b"{ common_cpu:          1, common_pid:        259, return: ~ 2^10 } hitcount:          1"
    b"  return:       1024\n"
    b"\nTotals:\n    Hits: 12\n    Entries: 2\n    Dropped: 3\n"
)


EMPTY = (
    b"# event histogram\n#\n"
    b"# trigger info: hist:keys=common_cpu:vals=hitcount:sort=hitcount:size=2048 [active]\n#\n\n"
    b"\nTotals:\n    Hits: 0\n    Entries: 0\n    Dropped: 0\n"
)
"""Tables as Debian's 6.1 and 6.12 print them, one after another for one event."""


STEPS = (
    b"# event histogram\n#\n"
    b"# trigger info: hist:keys=less.buckets=1000,tid:vals=hitcount,duration:sort=hitcount:size=128"
    b" if duration > 0 && duration <= 20000 [active]\n#\n\n"
    b"{ less: ~ 0-999, tid:        187 } hitcount:         27  duration:      14698\n"
    b"{ less: ~ 19000-19999, tid:        187 } hitcount:         29  duration:     565032\n"
    b"\nTotals:\n    Hits: 56\n    Entries: 2\n    Dropped: 0\n"
)
"""Buckets of one width, as Debian's 6.1 prints them."""
