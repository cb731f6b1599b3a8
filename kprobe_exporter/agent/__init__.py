"""The long-running agent: all stages wired together, with limits and repairs for its probes.

Takes a checked configuration, a tracefs and a request to stop. Gives an ``Agent`` that collects, answers
scrapes, exports by OTLP and takes new configurations; ``serve`` puts an HTTP server in front of it.
May import aggregate, config, elf, errors, export, export/otlp, grammar, identity, labels, model, plan,
probing, recording, service, sessions, source, symbols, tracefs, util, web and web/config.
"""
