"""Tests of kprobe_exporter, and the harness that runs them on real kernels."""
