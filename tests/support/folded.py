"""Folded text as stacks, each from its outermost function."""

from tests.support.agent_process import AgentProcess


def folded(agent: AgentProcess, probe: str = "sent") -> dict[tuple[str, ...], int]:
    """Return the stacks that an agent serves of a probe."""
    return parsed(agent.get(f"/stacks/{probe}"))


def parsed(text: str) -> dict[tuple[str, ...], int]:
    """Return folded text as stacks."""
    lines = text.splitlines()
    return {tuple(line.rpartition(" ")[0].split(";")): int(line.rpartition(" ")[2]) for line in lines}
