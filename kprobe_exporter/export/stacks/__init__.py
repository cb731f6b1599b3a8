"""Counted stacks as folded text, as a flame graph and as a profile in the format of pprof.

Takes a ``Profile``. Gives bytes.
May import errors, model and util.
"""
