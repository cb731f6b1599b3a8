"""Names of the kernel's functions and their addresses, and what can be probed."""
