"""The kernel's small languages and ours: attach strings, definitions, filters, format files. Pure.

Takes text. Gives values, most of which can be written back as text, or a GrammarError that points at a
column.
May import errors and model.
"""
