"""Log records, spans and metrics, sent to an OpenTelemetry collector by OTLP and counted exactly.

Takes records, snapshots and plain settings. Gives requests to a collector; each item is counted once: as
exported, as dropped or as failed.
May import errors, model and util.
"""
