"""The web configuration file of Prometheus' exporters (``--web.config.file``).

Takes the file's path. Gives ``WebSettings`` or every problem of the file, again whenever the file or a
certificate changes.
May import config, errors, util and web.
"""
