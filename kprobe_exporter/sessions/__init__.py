"""Sessions: terminal tools that a running agent starts on request, for a bounded time.

The server runs in the agent, and the client in another process of the same machine. The agent starts a
process of its own for each tool, `kprobe-exporter tool NAME`, and relays its output. So the tracing is that
of the terminal's tools, in instances of their own.
May import errors, model, tools and util.
"""
