"""Runs saved trace text through the stages of the agent, without a kernel.

Takes the bytes of a trace that any kernel since 2.6.33 has printed, and optionally a configuration. Gives
metrics and a summary.
May import aggregate, config, export, labels, model, plan and source.
"""
