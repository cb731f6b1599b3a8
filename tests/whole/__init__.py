"""An agent in a VM with real probes, scraped by a real Prometheus: every dashboard and every rule answers."""
