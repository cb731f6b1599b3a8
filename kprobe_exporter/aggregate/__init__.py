"""From events and the kernel's counts to numbers that only grow, bounded in their label sets."""
