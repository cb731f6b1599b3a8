"""An agent in a VM with real probes, and all that they are for happening to it, over and over."""
