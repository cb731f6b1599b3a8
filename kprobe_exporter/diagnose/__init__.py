"""The findings of ``check``, ``doctor`` and ``diff``. Only ``check --live --try`` changes anything, briefly.

Takes a configuration, or the paths of a tracefs and of the root. Gives how ``run`` would attach each
probe, and what a container denies to this process.
May import btf, config, elf, errors, grammar, identity, labels, model, plan, probing, symbols, tracefs and
util.
"""
