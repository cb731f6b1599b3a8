"""What the standard library lacks and several packages need: a token bucket, opening a file whose path
others may change, who may change a file, which failures to log, and the parts of protobuf's messages.

Takes and gives plain values.
May import nothing.
"""
