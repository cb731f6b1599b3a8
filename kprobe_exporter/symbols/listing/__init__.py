"""The things that can be probed: functions and tracepoints of this kernel, functions of a file, as attach
strings.

Takes a pattern. Gives the places that match, each with its prototype or fields on request, or a sentence
that says why there are none.
May import btf, elf, errors, grammar, symbols, tracefs and util.
"""
