"""Logs, metrics and readiness notifications of the daemon."""
