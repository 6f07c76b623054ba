"""The worker's part of a generation: receive its commit, enter it, report to the daemon, leave.

The same for every runtime whose workers are members themselves (PyTorch, MPI, Horovod); how a
group forms and how state moves is up to the runtime. The daemon's part is
``bftrainer.fleet.generations.generation``.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from bftrainer.elastic.process.control import Control, Key, die, key_of, step_aside
from bftrainer.elastic.process.reports import Reports, finite
from bftrainer.elastic.script.batch import Terms
from bftrainer.ground.fence import Fence
from bftrainer.ground.protocol import (
    Commit,
    Entered,
    Finished,
    Interrupted,
    Left,
    Report,
    Reported,
)

log = logging.getLogger("bftrainer.elastic")
_BEFORE_FIRST = Commit(generation=0, attempt=0, token="", members=())


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationInfo:
    """Position of a worker in the run; passed to the hooks of ``Run``."""

    generation: int
    attempt: int
    step: int
    epoch: int
    samples: int
    rank: int
    size: int
    terms: Terms = Terms()  # noqa: RUF009 - frozen

    @property
    def share(self) -> int:
        """Samples of this worker in a full batch."""
        # With tensor parallelism several workers have one share; the first of them counts.
        alike = max(1, self.size // max(1, len(self.terms.shares)))
        number, is_other = divmod(self.rank, alike)
        if is_other or number >= len(self.terms.shares):
            return 0
        return self.terms.shares[number]


class WorkerGenerations:
    """The generation that this worker is in, and the commits that it was sent."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.commit: Commit | None = None  # of the generation entered
        self.seen: Key = (-1, -1)  # the newest commit this worker acted on
        self.rank = 0
        self.size = 1
        self.terms = Terms()
        self.savers = 1  # workers of a node that write a checkpoint together
        self.stepped_s: float | None = None  # end of the last committed step, monotonic
        self.reports = Reports()  # part of the common state

    def position(self) -> tuple[int, int, int]:
        """Return the committed steps, epochs and samples; each runtime counts them."""
        raise NotImplementedError

    @property
    def generation(self) -> int:
        """Number of the generation entered; 0 before the first, and without an agent."""
        return (self.commit or _BEFORE_FIRST).generation

    @property
    def attempt(self) -> int:
        """Attempt of the generation entered."""
        return (self.commit or _BEFORE_FIRST).attempt

    @property
    def token(self) -> str:
        """Token of the generation entered, which no other has; "" before the first."""
        return (self.commit or _BEFORE_FIRST).token

    def info(self) -> GenerationInfo:
        """Return this worker's position."""
        step, epoch, samples = self.position()
        return GenerationInfo(
            generation=self.generation,
            attempt=self.attempt,
            step=step,
            epoch=epoch,
            samples=samples,
            rank=self.rank,
            size=self.size,
            terms=self.terms,
        )

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
        rank: int,
        size: int,
        *,
        transfer_s: float,
        resumed_from: str = "",
        backend: str = "",
    ) -> None:
        """Report that this worker holds the common state and trains (see ``Entered``)."""
        self.commit, self.rank, self.size = commit, rank, size
        self.control.close_stores(before=key_of(commit))
        step, epoch, samples = self.position()
        self.control.send(
            Entered(
                generation=commit.generation,
                attempt=commit.attempt,
                rank=rank,
                size=size,
                step=step,
                epoch=epoch,
                samples=samples,
                pause_s=0.0 if self.stepped_s is None else time.monotonic() - self.stepped_s,
                transfer_s=transfer_s,
                resumed_from=resumed_from,
                batch=self.terms.batch,
                lr_factor=self.terms.lr_factor,
                shares=self.terms.shares if rank == 0 else (),  # from one member is enough
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
            self.control.send(Reported(generation=self.generation, reports=self.reports.kept))

    def interrupted(self, reason: str) -> None:
        """Report that the group is broken, or did not form."""
        (generation, attempt), (step, _, _) = self.seen, self.position()
        log.warning("generation %d.%d interrupted: %s", generation, attempt, reason)
        self.control.send(
            Interrupted(generation=generation, attempt=attempt, step=step, reason=reason)
        )

    def finished(self) -> None:
        """Report that the run is complete."""
        step, epoch, samples = self.position()
        generation = self.generation
        self.control.send(Finished(generation=generation, step=step, epoch=epoch, samples=samples))

    def is_saver(self, commit: Commit) -> bool:
        """Return whether this worker writes the checkpoint before the trainer is parked."""
        config = self.control.config
        is_named = config.member_id == commit.saver and config.local_rank < self.savers
        return not commit.members and (is_named or (not commit.saver and self.rank < self.savers))

    def leave(self, commit: Commit, step: int) -> NoReturn:
        """Report that this worker is not in the generation, and exit."""
        _finish_tracker()
        self.control.send(Left(generation=commit.generation, step=step))
        step_aside()
        die(f"left before generation {commit.generation}", status=0)

    def fence(self) -> Fence:
        """Return the fence of this worker's checkpoints."""
        return Fence(
            incarnation=(self.commit or _BEFORE_FIRST).incarnation,
            generation=self.generation,
            token=self.token,
            trainer_id=self.control.config.trainer_id,
        )


def _finish_tracker() -> None:
    """Have W&B write what it holds: a process of its own, which ends with this one, keeps 15 s."""
    wandb: Any = sys.modules.get("wandb")
    with suppress(Exception):  # whatever it raises: this worker leaves
        if wandb is not None and wandb.run is not None:
            wandb.finish()
