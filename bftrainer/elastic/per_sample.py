"""State that belongs to the places of the global batch and lives from batch to batch.

A recurrent model that is trained on consecutive pieces of text carries a hidden state for each
row of its batch. Which worker has which rows changes with the size, so ``PerSample`` keeps the rows
of all places on all workers: each update adds up the new ones, in one reduction, before it counts.
State transfer and checkpoints then treat it like any other registered state. Used by ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from bftrainer.elastic import group as groups
from bftrainer.elastic.batch import BatchPiece, Cutting, GlobalBatch
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.group import Broken, Group


class PerSample:
    """One row for each place of the global batch; register it in ``extra``.

    ``rows`` are those of the present batch's samples. Those that the script sets are taken when
    ``run.step()`` commits the update.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        """Begin with these rows, one for each sample of ``loader.batch_size``."""
        self._device = rows.device
        self._all = rows.detach().cpu().clone()
        self._new = torch.zeros_like(self._all)  # of our places; zero elsewhere
        self._first = self._last = 0

    @property
    def rows(self) -> torch.Tensor:
        """The rows of the present batch, in the order of its samples."""
        return self._all[self._first : self._last].to(self._device, copy=True)

    @rows.setter
    def rows(self, rows: torch.Tensor) -> None:
        wanted = self._all[self._first : self._last].shape
        if rows.shape != wanted:
            raise ElasticError(
                "BFT-1427",
                f"Rows of the shape {tuple(rows.shape)} were set for a batch that has"
                f" {tuple(wanted)}.",
                "Set one row for each sample of the batch, of the shape given to PerSample.",
            )
        self._new[self._first : self._last] = rows.detach().cpu()

    def clear(self) -> None:
        """Set all rows to zero, as at the beginning of an epoch."""
        self._all = torch.zeros_like(self._all)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the rows of all places."""
        return {"rows": self._all}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the rows of all places."""
        self._all = state["rows"].detach().cpu().clone()

    # ---- for the run -------------------------------------------------------------------

    @property
    def places(self) -> int:
        """Number of rows."""
        return len(self._all)

    def serve(self, first: int, last: int, *, is_new: bool) -> None:
        """Serve these places; ``is_new``: it is the first pass over the batch."""
        if is_new:
            self._new.zero_()
        self._first, self._last = first, last
        self._new[first:last] = self._all[first:last]  # if the script sets none

    def add_up(
        self, group: Group | None, batch: int, abandoned: Callable[[], bool]
    ) -> Broken | None:
        """Take the new rows of all members."""
        new = self._new.clone()  # an abandoned reduction may still write into it
        if group is not None:
            broken = groups.settle(group.control.all_reduce(new), abandoned)
            if broken is not None:
                return broken
        self._all = torch.cat([new[:batch], self._all[batch:]])
        return None


class PerSampleStates:
    """All ``PerSample`` among the registered objects, in one order on all members."""

    def __init__(self, registered: Mapping[str, object], batch: int, cutting: Cutting) -> None:
        """Find them; ``batch`` is the loader's."""
        self._stores = [thing for thing in registered.values() if isinstance(thing, PerSample)]
        wrong = [store.places for store in self._stores if store.places != batch]
        if wrong or (self._stores and not isinstance(cutting.rule, GlobalBatch)):
            raise ElasticError(
                "BFT-1427",
                f"PerSample has {wrong[0]} rows, the global batch {batch} samples."
                if wrong
                else "PerSample needs a global batch that is the same at every size.",
                "Give it one row for each sample of loader.batch_size, with batch=GlobalBatch().",
            )

    def serve(self, piece: BatchPiece, number: int = 0) -> None:
        """Serve the rows of a pass."""
        for store in self._stores:
            store.serve(piece.start, piece.stop, is_new=number == 0)

    def serve_none(self) -> None:
        """Begin a batch of which this worker has no samples."""
        self.serve(BatchPiece(start=0, stop=0))

    def add_up(
        self, group: Group | None, batch: int, abandoned: Callable[[], bool]
    ) -> Broken | None:
        """Take the new rows of all members."""
        for store in self._stores:
            if (broken := store.add_up(group, batch, abandoned)) is not None:
                return broken
        return None
