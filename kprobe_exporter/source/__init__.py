"""Reads events: a background thread, and the pure parsers of what it reads.

Takes the ring buffer's pages or its text, and the layouts of the events. Gives batches of records in time
order, and tallies: sums that the compiled walk made without one record per event.
May import errors and model.
"""
