"""The exposition of a scrape: a snapshot in the format that the client asks for.

Takes a ``Snapshot`` and an Accept header. Gives Prometheus' text format, its protobuf format or OpenMetrics,
as bytes.
May import errors, model and util.
"""
