"""The kernel's side: finding tracefs, our instance, our probes, and the numbers that the kernel keeps.

Nothing here knows of configurations or metrics. Every path goes through ``files.Tracefs``, so that
the same code runs against the real thing and against the tests' fake.
"""
