"""``Run``: the loop of an elastic MPI program.

It calls the program's step function; members join and leave between two steps. The loss of a
member costs at most the step in flight (replicated arrays), or the work since the last copy in
memory (rows). Started by hand, alone or under ``mpirun``, the same program runs with fixed
members.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from bftrainer.elastic.loop.run_info import StepDurations
from bftrainer.elastic.mpi import library
from bftrainer.elastic.mpi.comm import Comm, GroupBroken
from bftrainer.elastic.mpi.membership import Change, Launched, MpiMembership
from bftrainer.elastic.mpi.state import BlockRows, MpiState, RecentCopies
from bftrainer.elastic.mpi.state_transfer import Disk, MpiStateTransfer
from bftrainer.elastic.process import control as control_module
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.reports import params
from bftrainer.ground.errors import ElasticError

COPY_S = 1.0  # between two copies of the rows to a neighbour's memory


class Run:
    """One elastic run; see ``docs/howto/train-mpi.md``.

    Args:
        replicated: arrays that are equal on all members, by name. They are changed in place;
            a joiner's are overwritten.
        rows: arrays divided among the members, by name.
        batch: samples of one step, over all members; progress is counted in them. With
            ``submit --batch`` the property ``batch`` says how many each step is to take.
        copy_s: time between two copies of the rows to a neighbour's memory; also the work
            that a loss costs, in seconds.
        repartition: called on all members, old and new, when the membership changes, to move
            state that is neither in ``replicated`` nor in ``rows``.
        guards: copy ``replicated`` before each step, so that an interrupted step changes
            nothing. Without it a step must not change them before its last exchange.
    """

    def __init__(
        self,
        *,
        replicated: Mapping[str, Any] | None = None,
        rows: Mapping[str, BlockRows] | None = None,
        batch: int = 1,
        copy_s: float = COPY_S,
        repartition: Callable[[Change], object] | None = None,
        guards: bool = True,
    ) -> None:
        self._control = control = control_module.current()
        self._state = state = MpiState(replicated or {}, rows or {})
        directory, self._interval_s = _saving(control)
        mpi, self._disk = library.load(), Disk(control, state, directory)
        self._memory = RecentCopies(state)
        self._handover = MpiStateTransfer(state, self._disk, self._memory, batch)
        kind: type[MpiMembership] = MpiMembership
        if control.is_plain:
            kind = Launched
        self._membership = kind(control, mpi, self._handover)
        if repartition is not None:
            self._membership.on_change = repartition
        self._own_batch, self._copy_s = batch, copy_s
        self._guard: list[bytearray] | None = None
        if guards and not state.rows:
            self._guard = state.copy_arrays()
        self._pace = StepDurations()
        control.report = self.report
        self._saved_s = self._copied_s = time.monotonic()
        self._is_over = False
        self._results: dict[str, bytearray] = {}

    @property
    def comm(self) -> Comm:
        """The present members; a new object after every change."""
        return self._membership.group()

    @property
    def rank(self) -> int:
        """This member's rank."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """Number of members."""
        return self.comm.size

    @property
    def step(self) -> int:
        """Steps done since the beginning of the run."""
        return self._handover.step

    @property
    def generation(self) -> int:
        """Number of the present generation."""
        return self._membership.generation

    @property
    def samples(self) -> int:
        """Samples of these steps, of all members."""
        return self._handover.samples

    @property
    def batch(self) -> int:
        """Samples of the present step, over all members; changes only between two steps."""
        return self._handover.counted.batch

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of this trial; empty outside of a study."""
        return params()

    def report(self, value: Any) -> None:
        """Report a metric of the steps done, such as an error; rank 0's counts and is sent.

        Within a step that step is not done yet. A report after as many steps replaces the one
        before.

        Raises:
            ElasticError: BFT-1611 when it is not a finite number.
        """
        self._membership.report(value, step=self.step, epoch=0, samples=self.samples)

    def loop(self, step: Callable[[Run], object], *, steps: int) -> bool:
        """Call ``step`` until ``steps`` are done.

        ``--samples`` or ``--steps`` of the submission overrides it.

        Returns whether this is rank 0, the only member that continues after the loop if agents
        started the program.
        """
        if self._is_over:
            raise ElasticError(
                "BFT-1405", "run.loop() was called twice.", "Use one loop, and one step function."
            )
        config = self._control.config
        samples = config.samples
        if samples is None:
            samples = steps * self._own_batch
        self._control.say_warm()
        self._membership.enter_next()
        while not self._is_over:
            try:
                while self._is_short_of(samples, config.steps):
                    self._do(step)
                self._finish()
            except GroupBroken as broken:
                reason = broken.reason
            else:
                break
            # Outside the handler, so that the exception does not keep the step's frames alive.
            self._pace.forget()
            self._membership.recover(reason)
        return self._membership.leave_loop()

    def _is_short_of(self, samples: int, steps: int | None) -> bool:
        """Return whether steps are left, or samples if the submission names no steps."""
        if steps is None:
            return self.samples < samples
        return self.step < steps

    def whole(self, name: str) -> bytearray:
        """Return all rows of an array, in order; on rank 0, after the loop."""
        return self._results[name]

    def _do(self, step: Callable[[Run], object]) -> None:
        if self._guard is not None:
            self._state.copy_arrays(self._guard)
        try:
            step(self)
        except GroupBroken:
            if self._guard is not None:
                self._state.restore_arrays(self._guard)
            raise
        self._handover.step += 1
        self._membership.stepped_s = time.monotonic()
        self._pace.note(self.batch)
        self._boundary()

    def _boundary(self) -> None:
        """Between two steps: agree on collective actions and carry them out."""
        membership, now_s = self._membership, time.monotonic()
        is_first = self.rank == 0
        is_save_due = (
            is_first
            and self._disk.directory is not None
            and now_s - self._saved_s >= self._interval_s
            and not self._disk.is_busy()
        )
        is_copy_due = is_first and bool(self._state.rows) and now_s - self._copied_s >= self._copy_s
        wishes = [membership.newer() is None, is_save_due, is_copy_due, membership.is_asked()]
        if self.size > 1:
            wishes = list(map(bool, self.comm.most(list(map(int, wishes)))))
        is_unheard, saves, copies, is_asked = wishes
        if copies:
            self._copied_s = now_s
            self._memory.take(self.comm, self.step)
        if saves or is_asked:
            self._saved_s = now_s
            self._handover.save(self.comm, 0, membership.fence(), aside=not is_asked)
        if is_asked:
            membership.stop()
        if not is_unheard:
            self._pace.forget()
            membership.enter_next()
        elif self._pace.is_due():
            membership.progress(self._pace)

    def _finish(self) -> None:
        handover, membership = self._handover, self._membership
        fence, was_complete = membership.fence(), handover.is_complete
        try:
            handover.is_complete = True
            rows = handover.save(self.comm, 0, fence, aside=False)
            self.comm.Barrier()
        except GroupBroken:
            handover.is_complete = was_complete
            raise
        self._results = dict(zip(self._state.rows, rows, strict=True))
        self._is_over = self._control.is_over = True
        membership.progress()
        membership.finished()


def _saving(control: Control) -> tuple[str, float]:
    """Return the checkpoint directory ("": none) and the seconds between two checkpoints."""
    if not control.is_plain:
        return control.config.checkpoint_dir, control.config.checkpoint_interval_s
    interval_s = float(os.environ.get("BFT_CHECKPOINT_INTERVAL_S", math.inf))
    return os.environ.get("BFT_CHECKPOINT_DIR", ""), interval_s
