"""Saved trace text through the stages of the agent."""
