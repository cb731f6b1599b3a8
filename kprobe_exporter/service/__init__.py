"""Running as a daemon: to be stopped, to tell systemd, to log."""
