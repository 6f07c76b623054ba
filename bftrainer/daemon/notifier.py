"""Tells users that their trainers have ended: runs the command of ``submit --notify``.

At most once per end: it is started after the end is on disk, and nothing is repeated, so it is
lost if the daemon dies in between. The command runs in a thread and a session of its own, with a
time limit, as the daemon's user, whose trainers alone may have one. Called by ``bftrainer.daemon``
and ``bftrainer.daemon.service``.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bftrainer.api.admission import MAILERS, command_of, variables
from bftrainer.api.service import user_name
from bftrainer.batch import process
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState, reason
from bftrainer.model.trainer_spec import NOTIFIED

LOG = logging.getLogger("bftrainer.trainers")
LIMIT_S = 60.0
MOST_AT_ONCE = 4
_OUTPUT_CAP_BYTES = 64 * 1024


@functools.cache
def own_user() -> str:
    """Return the name of the daemon's user."""
    return user_name(os.geteuid())


def mailer() -> str:
    """Return the program of this host that sends mail; "": none."""
    return next((path for path in MAILERS if os.access(path, os.X_OK)), "")


def check_user(spec: TrainerSpec) -> None:
    """Refuse the command of a user that the daemon would have to become.

    Raises:
        UsageError: BFT-1065.
    """
    if spec.notify and spec.user != own_user():
        raise UsageError(
            "BFT-1065",
            "This daemon runs as another user and runs no commands of yours.",
            "Omit --notify; in a script use 'bftrainer submit --wait' and what follows it.",
            exit_code=ExitCode.NOT_PERMITTED,
        )


class Notifier:
    """Runs the commands, a few at once."""

    def __init__(self, is_durable: Callable[[], bool], *, limit_s: float = LIMIT_S) -> None:
        """``is_durable`` waits until the journal is on disk; False: it cannot be written."""
        self._is_durable, self._limit_s = is_durable, limit_s
        self._turns = threading.BoundedSemaphore(MOST_AT_ONCE)

    def ended(self, record: TrainerRecord) -> None:
        """Start telling that a trainer, or its time limit, has ended; returns at once."""
        if record.state is TrainerState.FAILED:
            self._start(record, "fail")
        elif record.state.is_final:
            self._start(record, "end")
        else:
            why = reason(record, {}, record.overtime_s or 0.0)
            self._start(replace(record, state=TrainerState.PARKED, reason=why), "time")

    def _start(self, record: TrainerRecord, event: str) -> None:
        """Start telling of an event unless its user wants to hear of others only."""
        if not record.spec.notify or record.spec.user != own_user():
            return
        if event not in (record.spec.notify_at or NOTIFIED):
            return
        try:
            threading.Thread(target=self._tell, args=(record,), daemon=True).start()
        except RuntimeError as problem:  # no thread can be started
            LOG.warning("%s: --notify: %s", record.trainer_id, problem)

    def _tell(self, record: TrainerRecord) -> None:
        if not self._is_durable():
            LOG.warning("%s: --notify is left out, the end is not on disk", record.trainer_id)
            return
        argv, text = command_of(record, mailer())
        with self._turns:
            answer = process.run(
                argv,
                timeout_s=self._limit_s,
                env={**os.environ, **variables(record)},
                cwd=Path(record.spec.cwd),
                stdin=text,
                output_cap_bytes=_OUTPUT_CAP_BYTES,
            )
        if not answer.is_ok:
            why = str(answer.returncode)
            if answer.timed_out:
                why = f"no end within {self._limit_s:g} s"
            last = (answer.stderr.strip().splitlines() or [""])[-1]
            LOG.warning("%s: --notify %s: %s %.300s", record.trainer_id, argv[0], why, last)
