"""Attaching probes and choosing the source of their events: for the agent, ``trace`` and ``check --live``.

Takes plans and our instance of tracefs. Gives each probe attached by its first alternative that the
kernel accepts, and the source that reads the events of this kernel.
May import btf, config, elf, errors, grammar, identity, model, plan, source, symbols, tracefs and util.
"""
