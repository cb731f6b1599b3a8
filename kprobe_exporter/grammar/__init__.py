"""Parsers of the kernel's languages and of ours: attach strings, probe definitions, filters, format files.

Takes text. Gives values, most of which can be rendered as text again, or raises a GrammarError with the
column of the mistake. Does no I/O.
May import errors and model.
"""
