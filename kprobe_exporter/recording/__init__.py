"""Recordings: events and pages of the ring buffer as files for trace-cmd and Perfetto.

Takes the pages or the records of an instance. Gives a trace.dat or a timeline, and the files of a directory.
May import aggregate, errors, export, identity, labels, model, plan, symbols and tracefs.
"""
