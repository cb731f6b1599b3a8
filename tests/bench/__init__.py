"""Benchmarks: what the hot paths cost, as ratios within one run."""
