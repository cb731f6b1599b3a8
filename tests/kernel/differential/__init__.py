"""Configurations and loads that are drawn from a seed, and what the agent must count of them."""
