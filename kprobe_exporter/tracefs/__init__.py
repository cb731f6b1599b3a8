"""The kernel's side: finding tracefs, our instance, our probes, and the numbers that the kernel keeps.

Takes a ``ProbeSpec`` and paths below tracefs. Gives installed probes and counts, and a sentence for each
errno. Nothing here knows of configurations or metrics. Every path goes through ``files.Tracefs``, so
that the same code runs against the real thing and against the tests' fake.
May import errors, grammar and model.
"""
