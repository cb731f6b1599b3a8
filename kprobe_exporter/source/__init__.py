"""Reading events: a background thread, and the pure parsers of what it reads.

Takes the ring buffer's pages or its text, and the layouts of the events. Gives batches of records in the
order of time, and tallies: sums that the compiled walk made without a record each.
May import errors and model.
"""
