"""The HTTP server: metrics, the status page, health and reload, with bounds for every client.

Takes sockets, plain settings and callables: the snapshot, the stacks, the readiness, the reload. Gives
answers over HTTP and HTTPS.
May import errors, export, export/stacks, model and util.
"""
