"""The worker's part of a generation: receive its commit, enter it, report to the daemon, leave.

The same for every runtime whose workers are members themselves (PyTorch, MPI, Horovod); how a
group forms and how state moves is up to the runtime. The daemon's part is
``bftrainer.fleet.generations.generation``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from bftrainer.elastic.control import Control, Key, die, key_of, step_aside
from bftrainer.elastic.fence import Fence
from bftrainer.elastic.protocol import Commit, Entered, Interrupted, Left, Report, Reported
from bftrainer.elastic.reports import Reports, finite

log = logging.getLogger("bftrainer.elastic")


class WorkerGenerations:
    """The generation that this worker is in, and the commits that it was sent."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.commit: Commit | None = None  # of the generation entered
        self.seen: Key = (-1, -1)  # the newest commit this worker acted on
        self.rank = 0
        self.size = 1
        self.stepped_s: float | None = None  # end of the last committed step, monotonic
        self.reports = Reports()  # part of the common state

    def newer(self) -> Commit | None:
        """Return the newest commit that this worker has not acted on."""
        return self.control.newer_than(self.seen)

    def must_abandon(self) -> bool:
        """Return whether a newer commit declares the present generation broken."""
        newer = self.newer()
        return newer is not None and newer.abandon

    def wait(self) -> Commit:
        """Block until there is such a commit, and act on it."""
        return self.act_on(self.control.wait_newer(self.seen))

    def act_on(self, commit: Commit) -> Commit:
        """Begin to enter a generation; reports refer to it from now on."""
        self.seen = key_of(commit)
        return commit

    def entered(
        self,
        commit: Commit,
        *,
        rank: int,
        size: int,
        step: int,
        samples: int,
        transfer_s: float,
        epoch: int = 0,
        resumed_from: str = "",
        batch: int = 0,
        lr_factor: float = 1.0,
        shares: Sequence[int] = (),
        backend: str = "",
    ) -> None:
        """Report that this worker holds the common state and trains (see ``Entered``)."""
        self.commit, self.rank, self.size = commit, rank, size
        self.control.close_stores(before=key_of(commit))
        pause_s = 0.0 if self.stepped_s is None else time.monotonic() - self.stepped_s
        self.control.send(
            Entered(
                generation=commit.generation,
                attempt=commit.attempt,
                rank=rank,
                size=size,
                step=step,
                epoch=epoch,
                samples=samples,
                pause_s=pause_s,
                transfer_s=transfer_s,
                resumed_from=resumed_from,
                batch=batch,
                lr_factor=lr_factor,
                shares=tuple(shares),
                backend=backend,
            )
        )
        self._send_reports()  # a daemon or a rank 0 that is gone may have had them alone

    def report(self, value: Any, *, step: int, epoch: int, samples: int) -> None:
        """Keep a metric that the script reports; rank 0 sends it.

        Raises:
            ElasticError: BFT-1611 when it is not a finite number.
        """
        number = finite(value)
        self.reports.add(Report(value=number, step=step, epoch=epoch, samples=samples))
        self._send_reports()

    def _send_reports(self) -> None:
        if self.rank == 0 and self.reports.kept:
            generation = 0 if self.commit is None else self.commit.generation
            self.control.send(Reported(generation=generation, reports=self.reports.kept))

    def interrupted(self, reason: str, step: int) -> None:
        """Report that the group is broken, or did not form."""
        generation, attempt = self.seen
        log.warning("generation %d.%d interrupted: %s", generation, attempt, reason)
        self.control.send(
            Interrupted(generation=generation, attempt=attempt, step=step, reason=reason)
        )

    def is_saver(self, commit: Commit) -> bool:
        """Return whether this worker writes the checkpoint before the trainer is parked."""
        config = self.control.config
        is_named = config.member_id == commit.saver and config.local_rank == 0
        return not commit.members and (is_named or (not commit.saver and self.rank == 0))

    def leave(self, commit: Commit, step: int) -> NoReturn:
        """Report that this worker is not in the generation, and exit."""
        self.control.send(Left(generation=commit.generation, step=step))
        step_aside()
        die(f"left before generation {commit.generation}", status=0)

    def fence(self) -> Fence:
        """Return the fence of this worker's checkpoints."""
        commit = self.commit
        return Fence(
            incarnation=0 if commit is None else commit.incarnation,
            generation=0 if commit is None else commit.generation,
            token="" if commit is None else commit.token,
            trainer_id=self.control.config.trainer_id,
        )
