"""Why a Slurm command failed, where its own words do not say it, and whether it was heard.

Slurm 22.05 prints the same for a clock that is wrong as for a lost connection, and sbatch waits
silently on a full queue (measured with ``tests/integration/test_accidents_*.py``). Used by whoever
runs Slurm's commands.
"""

from __future__ import annotations

from bftrainer.batch import commands, process

_MUNGE_HERE = (
    "BFT-1551 munge on this host does not answer, so Slurm takes no request from here: start it "
    "(systemctl start munge)."
)
_MUNGE_THERE = (
    "BFT-1552 The controller drops our requests, as when its munge refuses their credentials: the "
    "clocks differ by 5 minutes or more, the keys differ, or munge is down there. Compare: "
    "munge -n | ssh CONTROLLER unmunge."
)
_FULL = (
    "BFT-1553 Slurm takes no job for now, as when its queue is full (MaxJobCount). Wait, or lower "
    "MinJobAge or raise MaxJobCount."
)
# In this order: what munge says itself comes first.
_MEANINGS = (
    ("Munge encode failed", _MUNGE_HERE),
    ("Munge decode failed", _MUNGE_THERE),
    ("authentication error", _MUNGE_THERE),
    ("authentication credential", _MUNGE_THERE),
    ("Zero Bytes were transmitted", _MUNGE_THERE),
    ("temporarily unable to accept job", _FULL),
)
# The request may have been carried out all the same (slurm_errno.h).
_UNHEARD = ("Zero Bytes were transmitted", "Socket timed out")
_AWAY = ("contact slurm controller", *(sign for sign, _ in _MEANINGS[:5]))


def why_failed(done: process.Completed) -> str:
    """Say in a sentence or two why a command failed, and what helps if that is known."""
    why = commands.why_failed(done)
    for sign, meaning in _MEANINGS:
        if sign in done.stderr:
            return f"{meaning} (Slurm: {sign})"
    return why


def is_unknown(done: process.Completed) -> bool:
    """Whether a request that failed may have been carried out."""
    return done.timed_out or done.truncated or any(sign in done.stderr for sign in _UNHEARD)


def is_controller_away(done: process.Completed) -> bool:
    """Whether the failure means that no command will be answered now."""
    return done.timed_out or any(sign in done.stderr for sign in _AWAY)
