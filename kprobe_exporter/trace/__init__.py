"""The command ``trace``: the agent's stages wired for a person at a terminal, like perf-tools' kprobe.

Takes a definition or an attach string. Gives lines of text, JSON objects, a table of counts, or the YAML
that does the same; counted stacks; recordings.
May import aggregate, config, elf, errors, export, export/stacks, grammar, identity, labels, model, plan,
probing, service, source, symbols, tracefs and util.
"""
