"""The HTTP server: routes, connections, authentication, the status page."""
