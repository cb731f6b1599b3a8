"""What ``check --live`` and ``doctor`` find out without changing anything.

Takes a configuration, or the paths of a tracefs and of the root. Gives what ``run`` would settle on for
each probe, and what a container withholds from this process.
May import config, errors, grammar, identity, labels, model, plan, probing, symbols and tracefs.
"""
