"""The web configuration file of Prometheus' exporters (`--web.config.file`): read, checked, watched."""
