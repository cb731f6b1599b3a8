"""The values that stages hand each other."""
