"""examples/ebpf_exporter: each example is provoked, and its metric compared with an independent count."""
