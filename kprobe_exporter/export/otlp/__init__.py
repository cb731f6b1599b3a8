"""OpenTelemetry by OTLP: log records, spans and metrics, sent and counted exactly."""
