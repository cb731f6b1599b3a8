"""Running as a daemon: requests to stop and to reload, sd_notify, the watchdog, the log.

Takes signals, systemd's environment and log records. Gives flags to wait for, messages to systemd and
lines on stderr.
May import errors and util.
"""
