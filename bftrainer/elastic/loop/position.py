"""Where a run is, as its script asks. ``Run`` inherits it; nothing here changes anything."""

from __future__ import annotations

from bftrainer.elastic.loop.membership import Membership
from bftrainer.elastic.loop.run_phases import Pass, RunLife
from bftrainer.elastic.script.batch import EpochPlan


class Position:
    """Rank, size and progress of a worker."""

    _membership: Membership
    _plan: EpochPlan
    _life: RunLife
    _pass: Pass

    @property
    def rank(self) -> int:
        """This worker's rank in the present generation."""
        return self._membership.rank

    @property
    def size(self) -> int:
        """Number of workers in the present generation."""
        return self._membership.size

    @property
    def local_rank(self) -> int:
        """This worker's number among those of its node; never changes."""
        return self._membership.control.config.local_rank

    @property
    def local_size(self) -> int:
        """Number of workers on every node; never changes."""
        return self._membership.control.config.local_size

    @property
    def generation(self) -> int:
        """Number of the present generation; 0 before the first, and without an agent."""
        return self._membership.generation

    @property
    def epoch(self) -> int:
        """The run's epoch; a joiner's loop variable may lag behind it in its first pass."""
        return self._membership.counters.epoch

    @property
    def step_count(self) -> int:
        """Committed updates so far."""
        return self._membership.counters.step

    @property
    def updates_per_epoch(self) -> int:
        """Updates in an epoch at the present size, for schedules over the whole training.

        Where the batch is per worker (``PerWorkerBatch``) it changes with the size.
        """
        return -(-self._plan.epoch_samples // max(1, self._membership.terms.batch))

    @property
    def samples(self) -> int:
        """Samples in committed updates so far, of all workers, over all epochs."""
        return self._membership.counters.samples

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0, which prints and writes; never while rehearsing."""
        return self.rank == 0 and not self._life.is_rehearsing

    @property
    def rehearsing(self) -> bool:
        """Return whether the present batch changes nothing.

        It is a joiner's rehearsal, or the workers of a node compute together and there are fewer
        samples than workers.
        """
        return self._life.is_rehearsing or self._pass.is_empty

    @property
    def is_last_pass(self) -> bool:
        """Return whether the next ``step()`` updates: no further pass over this batch follows."""
        return self._pass.is_last
