"""Kernel functions' parameters and return types, and structures, from BTF: the types the kernel has itself.

Takes the files of /sys/kernel/btf. Gives the prototypes of functions, how the kernel fetches their
arguments and return values, and where the members of structures are.
May import errors, grammar and model.
"""
