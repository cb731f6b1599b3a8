"""The event engine, in C: it walks pages, joins calls and pairs, and adds up records without Python objects.

engine.h is its whole interface, and its comment the overview; ``source/_pages.pyx`` binds it to Python.
May import nothing.
"""
