"""The kernel's tracing files: the tracefs mount, our trace instance, our probes, and the kernel's counts.

Takes a ``ProbeSpec`` and paths below tracefs. Gives installed probes and counts, and a sentence for each
errno. This package knows no configuration and no metrics. Every path goes through ``files.Tracefs``, so
the same code runs against a real tracefs and against the fake one of the tests.
May import errors, grammar, model and util.
"""
