"""Helpers that the standard library lacks and several packages need: a token bucket, failures to log, the
parts of protobuf's messages. Others open a file whose path may change, and find who may change a file.

Takes and gives plain values.
May import nothing.
"""
