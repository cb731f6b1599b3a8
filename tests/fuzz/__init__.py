"""Fuzzing of all code that reads bytes from outside the agent."""
