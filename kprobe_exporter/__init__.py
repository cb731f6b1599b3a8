"""Watch what the Linux kernel does, from Prometheus, with a YAML file and nothing to compile."""

__version__ = "0.1.0"
