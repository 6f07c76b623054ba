"""CLI and dashboards ↔ daemon: HTTP over a Unix socket with peer credentials."""
