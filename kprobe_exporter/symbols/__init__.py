"""Names and addresses of functions: of the kernel, and whether they can be probed; of running programs.

Takes kallsyms, the lists in tracefs, /proc and programs' files. Gives the symbol at an address, the functions
that a pattern stands for, and the reason why one cannot be probed.
May import elf, errors, grammar, identity, model, tracefs and util.
"""
