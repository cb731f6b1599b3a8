"""What ``check`` and ``doctor`` find out without changing anything.

Takes a configuration, or the paths of a tracefs and of the root. Gives how ``run`` would attach each
probe, and what a container denies to this process.
May import config, elf, errors, grammar, identity, labels, model, plan, probing, symbols, tracefs and
util.
"""
