"""Names and addresses of the kernel's functions, and whether they can be probed.

Takes kallsyms and the lists in tracefs. Gives the symbol at an address, the functions that a pattern
stands for, and the reason why one cannot be probed.
May import errors, grammar and tracefs.
"""
