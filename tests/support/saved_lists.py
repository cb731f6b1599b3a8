"""A kernel's lists of symbols and functions, with aliases, shared names and what users have added."""

START = 0xFFFFFFFF9A200000

KALLSYMS = b"""\
0000000000000000 A fixed_percpu_data
0000000000001000 A cpu_debug_store
ffffffff9a200000 T _text
ffffffff9a200000 T startup_64
ffffffff9a201000 T vfs_read
ffffffff9a201040 t __pfx_shared
ffffffff9a201050 t shared
ffffffff9a202050 t shared
ffffffff9a203000 T __do_sys_getppid
ffffffff9a203000 T __x64_sys_getppid
ffffffff9a204000 t quiet
ffffffff9a205000 T alias_of_one
ffffffff9a205000 T one
ffffffff9aa00000 D jiffies
ffffffff9b000000 T _sinittext
ffffffff9b000010 t shared
ffffffff9b100000 T _einittext
ffffffffc0000000 t shared\t[ext4]
ffffffffc0000100 t ext4_open\t[ext4]
ffffffffc0100000 t bpf_prog_6deef7357e7b4530_secret\t[bpf]
ffffffffc0200000 t kprobe_insn_page\t[__builtin__kprobes]
"""

TRACEABLE = b"""\
vfs_read
shared
shared
one
__do_sys_getppid
shared [ext4]
ext4_open [ext4]
"""

SITES = b"""\
ffffffff9a201004 vfs_read
ffffffff9a201054 shared
ffffffff9a202054 shared
ffffffff9a205004 one
ffffffffc0000004 shared [ext4]
"""
