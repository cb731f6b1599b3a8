"""The Grafana dashboards, built by grafana-foundation-sdk: ``python -m grafana`` writes dashboards/*.json."""
