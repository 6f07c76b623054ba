"""Names of signals as users write them: ``USR1``, ``SIGUSR1``, or ``none``. Pure."""

from __future__ import annotations

import signal

NO_SIGNAL = "none"
_NOT_HANDLED = (signal.SIGKILL, signal.SIGSTOP)


def signal_number(name: str) -> signal.Signals | None:
    """Return the signal; None for ``none`` and for what no program can handle."""
    found = signal.Signals.__members__.get(f"SIG{name.upper().removeprefix('SIG')}")
    return None if found in _NOT_HANDLED else found
