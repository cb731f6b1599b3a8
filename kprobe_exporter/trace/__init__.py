"""The commands ``trace`` and ``tool``: the agent's stages wired for a person at a terminal.

Takes a definition, an attach string or a tool. Gives lines of text, JSON objects, tables, histograms, or the
YAML that does the same; counted stacks; recordings.
May import aggregate, config, elf, errors, export, export/stacks, grammar, identity, labels, model, plan,
probing, recording, service, source, symbols, tools, tracefs and util.
"""
