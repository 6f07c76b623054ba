"""API between CLI or dashboards and daemon: HTTP over a Unix socket with peer credentials."""
