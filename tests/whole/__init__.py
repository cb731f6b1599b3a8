"""An agent in a VM with real probes, scraped by a real Prometheus: each dashboard and each rule has data."""
