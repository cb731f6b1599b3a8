"""What leaves the agent: metrics for Prometheus, and the HTTP server that hands them out."""
