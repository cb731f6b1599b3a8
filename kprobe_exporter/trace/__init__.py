"""The command ``trace``: the stages of the agent wired for a person at a terminal, as perf-tools' kprobe."""
