"""Builds what is published: the sdist and wheels, the Debian and RPM packages, the container images.

``python -m release`` imports only the standard library. The tools that it runs are locked in
deploy/requirements/release.txt or are programs of Debian. With the same commit, Python and tools every file
is byte for byte the same, wherever and whenever it is built.
"""
