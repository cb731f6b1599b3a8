"""The agent: the stages wired together, its probes, and what goes on while it runs."""
