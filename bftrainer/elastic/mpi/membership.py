"""A worker's membership over MPI: entering, changing and leaving generations.

``control`` supplies the ``Commit`` messages; each yields a communicator and the common state. A
planned change is made by all old members together: joiners connect, state moves, the
communicator is split, leavers exit. After a loss the old communicator is abandoned, with
whatever hangs in it, and the survivors connect anew. Called by ``run``.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bftrainer.elastic.loop.run_info import StepDurations
from bftrainer.elastic.mpi import library
from bftrainer.elastic.mpi.comm import Comm, GroupBroken, Union, unite
from bftrainer.elastic.mpi.state_transfer import MpiStateTransfer
from bftrainer.elastic.network.collective import GROUP_TIMEOUT_S, AbandonableCall, Broken
from bftrainer.elastic.process.control import Control, Key, end_as_loss, key_of
from bftrainer.elastic.process.generations import WorkerGenerations
from bftrainer.elastic.process.reports import finite
from bftrainer.elastic.script.batch import Terms
from bftrainer.ground.protocol import Commit

log = logging.getLogger("bftrainer.elastic")

HUNG_S = 0.2  # a non-blocking call that takes longer hangs
FORM_PATIENCE_S = 5.0  # limit for connecting or splitting: then the next attempt
LOOK_S = 1.0  # while connecting or splitting: between two checks that MPI responds
RAW_PATIENCE_S = 5.0  # for a blocking call on ``Run.comm.raw`` after a loss
SAVED = 85  # exit status: "the checkpoint is written, start me again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of membership, as the repartition callback sees it.

    ``comm`` holds the old and the new members if the change was planned, only the new ones
    after a loss or at a start. ``old_rank`` is None for a joiner, ``new_rank`` for a leaver.
    ``old_size`` is that of the group of which this member heard last: where others are lost while
    a loss is recovered from, members may have heard of different ones.
    """

    comm: Comm
    old_rank: int | None
    old_size: int
    new_rank: int | None
    new_size: int
    step: int
    is_planned: bool


class MpiMembership(WorkerGenerations):
    """Generations of a worker that an agent started."""

    def __init__(self, control: Control, mpi: Any, handover: MpiStateTransfer) -> None:
        super().__init__(control)
        self.comm: Comm | None = None
        self.on_change: Callable[[Change], object] = lambda _change: None
        self._mpi = mpi
        self._in_use: Comm | None = None  # ``comm``, or the next one while it forms
        self._handover = handover
        self.reports = handover.reports
        self._roster: tuple[str, ...] = ()
        self._me = control.config.worker_id
        control.on_commit = self._watch

    # ---- for run ---------------------------------------------------------------------

    def position(self) -> tuple[int, int, int]:
        """Return steps and samples; a program has no epochs."""
        return self._handover.step, 0, self._handover.samples

    def group(self) -> Comm:
        """Return the communicator of the generation."""
        if self.comm is None:
            raise RuntimeError("the loop has not begun")
        return self.comm

    def is_asked(self) -> bool:
        """Return whether a checkpoint and the end are requested in another way than by a commit."""
        return False

    def stop(self) -> None:
        """End after such a request, when the checkpoint was written."""

    def progress(self, pace: StepDurations | None = None) -> None:
        """Report the progress; ``pace``: how long steps took."""
        if pace is not None:
            self.control.send(pace.progress(self.info()))

    def leave_loop(self) -> bool:
        """Return on rank 0, exit elsewhere: the code after the loop runs once."""
        comm = self.group()
        if comm.rank != 0:
            comm.linger()
            raise SystemExit(0)
        return True

    def _watch(self, commit: Commit) -> None:
        """In the control thread: after a loss, check later that the group was left."""
        if commit.abandon and self._in_use is not None:
            self._look_later(key_of(commit), time.monotonic())

    def _look_later(self, key: Key, since_s: float) -> None:
        timer = threading.Timer(HUNG_S, self._end_if_hung, (key, since_s))
        timer.daemon = True
        timer.start()

    def _end_if_hung(self, key: Key, since_s: float) -> None:
        """End this process if MPI hangs: as a loss, not as a failure.

        A call that starts or tests an operation may try for ever to send to a dead member
        (libfabric); so may a blocking call of the program.
        """
        comm, now_s = self._in_use, time.monotonic()
        if comm is None or self.seen >= key or self.control.is_over:
            return
        inside_s = comm.inside_since_s
        if inside_s is not None and now_s - inside_s >= HUNG_S:
            end_as_loss("an MPI call hangs: a member is lost")
        if comm.is_raw_used and now_s - since_s >= RAW_PATIENCE_S:
            end_as_loss("BFT-1444: a call on Run.comm.raw hangs: a member is lost")
        self._look_later(key, since_s)

    def _end_if_stuck(self) -> None:
        """End this process if an abandoned call keeps MPI's global lock.

        A call that waits for joiners, or one that an earlier generation abandoned, drives all
        operations in progress. One that tries for ever to send to a dead member never releases
        the lock, and every later call waits for it.
        """
        touching = AbandonableCall(self.control, lambda: library.touch(self._mpi))
        touching.wait(lambda: False, LOOK_S)
        if not touching.is_done:
            end_as_loss("MPI no longer responds: a member was lost")

    # ---- changes ---------------------------------------------------------------------

    def enter_next(self) -> None:
        """Wait for the next commit and enter its generation."""
        self._enter(self.wait())

    def recover(self, reason: str) -> None:
        """Report that the group is broken and enter the next one."""
        self._let_go()
        self.interrupted(reason)
        self.enter_next()

    def _enter(self, commit: Commit) -> None:
        while True:
            self.act_on(commit)
            try:
                self._form(commit)
            except GroupBroken as broken:
                self._let_go()
                self.interrupted(broken.reason)
                commit = self.wait()
            else:
                return

    def _form(self, commit: Commit) -> None:
        began_s = time.monotonic()
        if commit.abandon:
            self._let_go()
        if not commit.members:
            self._park(commit)
        rank_of = {member.worker_id: member.rank for member in commit.members}
        if self.comm is None and self._me not in rank_of:
            self.leave(commit, self._handover.step)
        roster: tuple[str, ...] = ()
        old_rank: int | None = None
        if self.comm is None:
            raw = self._mpi.COMM_SELF.Dup()
        else:
            roster, old_rank, raw = self._roster, self.rank, self.comm._raw  # noqa: SLF001
        union = self._aside(
            commit,
            lambda: unite(
                self._mpi,
                commit,
                worker_id=self._me,
                old=roster,
                raw=raw,
                timeout_s=GROUP_TIMEOUT_S,
            ),
        )
        group = self._in_use = Comm(self._mpi, union.raw, self._is_overtaken(commit))
        new_ranks = list(map(rank_of.get, union.ids))
        resumed = ""
        if union.old_ids:
            self._handover.move_rows(group, len(union.old_ids), new_ranks, len(rank_of))
            if len(union.ids) > len(union.old_ids):
                self._handover.spread(group, 0)
        else:
            resumed = self._handover.agree(group)
        change = Change(
            comm=group,
            old_rank=old_rank,
            old_size=len(union.old_ids),
            new_rank=rank_of.get(self._me),
            new_size=len(rank_of),
            step=self._handover.step,
            is_planned=bool(union.old_ids),
        )
        if union.old_ids:
            self.on_change(change)
        comm = self._settle(commit, union, rank_of)
        if self._handover.state.rows:
            self._handover.memory.take(comm, self._handover.step)
        if not union.old_ids:
            self.on_change(change)
        self._complete(commit, comm, time.monotonic() - began_s, resumed)

    def _settle(self, commit: Commit, union: Union, rank_of: dict[str, int]) -> Comm:
        """Split off the leavers; return the communicator of the members, by rank."""
        mpi, mine = self._mpi, rank_of.get(self._me)
        if not union.old_ids and union.ids == tuple(sorted(rank_of, key=rank_of.__getitem__)):
            return self._use(union.raw)
        old_comm, self.comm = self.comm, None

        def split() -> Any:
            color = mpi.UNDEFINED if mine is None else 0
            parted = union.raw.Split(color, mine or 0)
            if old_comm is not None and old_comm._raw is not union.raw:  # noqa: SLF001
                old_comm._raw.Free()  # noqa: SLF001
            union.raw.Disconnect()
            return parted

        raw = self._aside(commit, split)
        if mine is None:
            self.leave(commit, self._handover.step)
        return self._use(raw)

    def _use(self, raw: Any) -> Comm:
        self._in_use = Comm(self._mpi, raw, self.must_abandon)
        return self._in_use

    def _complete(self, commit: Commit, comm: Comm, took_s: float, resumed: str) -> None:
        self.comm = comm
        members = sorted(commit.members, key=lambda member: member.rank)
        self._roster = tuple(member.worker_id for member in members)
        sample_count = self._handover.counted
        sample_count.begin(self._handover.step, commit.batch)
        self.terms = Terms(batch=sample_count.batch)
        self.entered(commit, comm.rank, comm.size, transfer_s=took_s, resumed_from=resumed)

    def _park(self, commit: Commit) -> NoReturn:
        """Save the state if it is complete, and exit."""
        saver = commit.saver
        if not saver and self._roster:
            saver = self._roster[0]
        try:
            if self.comm is not None:
                root = self._roster.index(saver) if saver in self._roster else 0
                self._handover.save(self.comm, root, self.fence(), aside=False)
            elif saver == self._me and self._handover.is_current and not self._handover.state.rows:
                self._handover.save_alone((), self.fence(), aside=False)
        except (OSError, GroupBroken) as problem:
            log.warning("not saved before parking: %s", problem)
        self.leave(commit, self._handover.step)

    def _let_go(self) -> None:
        for comm in (self.comm, self._in_use):
            if comm is not None:
                comm.leave()
        self.comm = self._in_use = None

    def _is_overtaken(self, commit: Commit) -> Callable[[], bool]:
        return lambda: self.control.newer_than(key_of(commit)) is not None

    def _aside(self, commit: Commit, action: Callable[[], Any]) -> Any:
        task, is_overtaken = AbandonableCall(self.control, action), self._is_overtaken(commit)
        until_s = time.monotonic() + FORM_PATIENCE_S
        while not (task.is_done or is_overtaken() or time.monotonic() > until_s):
            task.wait(is_overtaken, LOOK_S)
            if not task.is_done:
                self._end_if_stuck()
        outcome = task.wait(is_overtaken, 0.0)
        if isinstance(outcome, Broken):
            raise GroupBroken(outcome.reason)
        return outcome


class Launched(MpiMembership):
    """The fixed membership of a program started without an agent, reduced only by losses.

    Its members are those of MPI_COMM_WORLD, with any MPI. Under runtime ``command`` it follows that
    runtime's contract (docs/howto/train-command.md): it is resized by restart. With ULFM (Open MPI
    5, ``mpirun --with-ft ulfm``) the survivors of a loss continue: revoke, shrink, and restore the
    state as after any loss.
    """

    def __init__(self, control: Control, mpi: Any, handover: MpiStateTransfer) -> None:
        super().__init__(control, mpi, handover)
        self._has_lost = False
        self._told_size = 0  # of the group that the program knows of
        self._asked: list[int] = []
        atexit.register(self._finalize)
        self._control_file = Path(os.environ.get("BFT_CONTROL_FILE", os.devnull))
        if "BFT_CONTROL_FILE" in os.environ:
            signal.signal(signal.SIGUSR1, lambda number, _: self._asked.append(number))

    @property
    def generation(self) -> int:
        """Number of the start."""
        return int(os.environ.get("BFT_GENERATION", "0"))

    def is_asked(self) -> bool:
        """Return whether runtime ``command`` has requested a checkpoint and the end."""
        return bool(self._asked) or "stop" in self._control_file.read_text()

    def stop(self) -> None:
        """Exit after the checkpoint was written."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # our own request may still arrive
        self._end(SAVED)

    def progress(self, pace: StepDurations | None = None) -> None:
        """Print the progress."""
        del pace
        self._print("")

    def report(self, value: Any, *, step: int, epoch: int, samples: int) -> None:
        """Print a metric, as runtime ``command`` takes it."""
        del step, epoch, samples
        self._print(f" value={finite(value)!r}")

    def _print(self, more: str) -> None:
        step, _, samples = self.position()
        if self.group().rank == 0 and "BFT_TRAINER" in os.environ:
            sys.stdout.write(f"BFT step={step} samples={samples}{more}\n")
            sys.stdout.flush()

    def enter_next(self) -> None:
        """Begin with all launched members, or with those that are alive."""
        try:
            self._begin(self._mpi.COMM_WORLD)
        except GroupBroken as broken:
            self.recover(broken.reason)

    def recover(self, reason: str) -> None:
        """Continue without the lost members, however many are lost meanwhile.

        Raises:
            RuntimeError: this MPI does not support that.
        """
        sys.stderr.write(f"bftrainer: a member was lost: {reason}\n")
        self._has_lost = True
        while True:
            old_comm = self.group()
            raw = old_comm._raw  # noqa: SLF001 - the wrapper's other half
            try:
                raw.Revoke()
                shrunk = raw.Shrink()
            except (self._mpi.Exception, NotImplementedError) as problem:
                raise RuntimeError(f"this MPI cannot continue without it: {problem}") from None
            try:
                self._begin(shrunk)
            except GroupBroken:
                continue  # ``group()`` is the shrunk one now: others of it were lost
            return

    def _begin(self, raw: Any) -> None:
        """Make this the group, agree on the state to go on from, and tell the program.

        Raises:
            GroupBroken: others of it were lost.
        """
        comm = self.comm = Comm(self._mpi, raw, lambda: False)
        self._handover.agree(comm)
        if self._handover.state.rows:
            self._handover.memory.take(comm, self._handover.step)
        self.on_change(
            Change(
                comm=comm,
                old_rank=None,
                old_size=self._told_size,
                new_rank=comm.rank,
                new_size=comm.size,
                step=self._handover.step,
                is_planned=False,
            )
        )
        self._told_size = comm.size
        self.progress()

    def leave_loop(self) -> bool:
        """Return whether this is rank 0."""
        is_first = self.group().rank == 0
        if self._has_lost and not is_first:
            self._end(0)
        return is_first

    def _finalize(self) -> None:
        """Finalise MPI unless a member was lost: MPI_Finalize would wait for it."""
        if not self._has_lost and not self._mpi.Is_finalized():
            self._mpi.Finalize()

    def _end(self, status: int) -> None:
        if self._has_lost:  # mpi4py would finalise if the script loaded it before us
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        raise SystemExit(status)
