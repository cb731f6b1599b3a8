"""The frozen values that stages hand each other: probes, layouts, batches, hist tables, snapshots.

Takes and gives nothing but these values: no code here reads a file or a clock.
May import nothing.
"""
