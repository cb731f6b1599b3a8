"""The parameters and return types of kernel functions, from BTF: the types the kernel was compiled with.

Takes the files of /sys/kernel/btf. Gives the prototypes of functions, and how the kernel fetches their
arguments and return values.
May import errors and model.
"""
