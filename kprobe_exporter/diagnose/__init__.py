"""What ``check`` and ``doctor`` find out. Only ``check --live --try`` changes anything, for a moment.

Takes a configuration, or the paths of a tracefs and of the root. Gives how ``run`` would attach each
probe, and what a container denies to this process.
May import config, elf, errors, grammar, identity, labels, model, plan, probing, symbols, tracefs and
util.
"""
