"""The exception by which Optuna ends a trial, where Optuna need not be installed."""

from __future__ import annotations


class TrialPruned(Exception):  # noqa: N818 - Optuna's name
    """As Optuna's."""
