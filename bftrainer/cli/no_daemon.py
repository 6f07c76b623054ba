"""The next step of those whose daemon does not answer: it depends on what the site has."""

from __future__ import annotations

import contextlib
import functools
import shutil

from bftrainer.model.errors import BftError, NoDaemonError

_ASKS = "scontrol"  # without it there is no Slurm to ask
_NAMED = "One that runs is named with --socket, BFTRAINER_SOCKET or BFTRAINER_STATE_DIR."


def led(error: NoDaemonError) -> BftError:
    """Return the error with the step for this site.

    ``up`` where Slurm has a partition whose jobs are preempted, ``try`` elsewhere.
    """
    return BftError(error.code, error.cause, next_step(partitions()), exit_code=error.exit_code)


def next_step(names: tuple[str, ...]) -> str:
    """Return what to do where these partitions are preemptable."""
    if not names:
        return (
            "Try your script without one: bftrainer try SCRIPT (no partition with preemption is "
            f"seen here, which bftrainer up would need). {_NAMED}"
        )
    which = f" --partition {names[0]}" if len(names) > 1 else ""
    return f"Start your own: bftrainer up{which} (jobs of {names[0]} are preempted). {_NAMED}"


@functools.cache  # a verb on several trainers tells it of each
def partitions() -> tuple[str, ...]:
    """Return the partitions here whose jobs are preempted; none where that is not known."""
    if shutil.which(_ASKS) is None:
        return ()
    from bftrainer.site.own.plan import load  # noqa: PLC0415 - where there is a Slurm only

    with contextlib.suppress(BftError):
        return load("slurm").preemptable()
    return ()
