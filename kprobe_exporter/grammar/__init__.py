"""The kernel's small languages and ours, pure: attach strings, definitions, event filters."""
