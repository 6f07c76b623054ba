"""The order of an epoch's samples where the script gives it: ``Run(indices=...)``.

``indices(epoch)`` returns indices of the dataset, any number of them and also repeated ones. It is
called in every worker, with random streams seeded from run and epoch, so that it may draw from
them; what it returns must be the same everywhere. That is checked: in each worker by asking twice,
between members when a generation forms, and by joiners and resumed runs, which receive the hash of
the order that the others are in. Used by ``run`` and ``loader``.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.sampler import mix
from bftrainer.elastic.state import seed_everything

Indices = Callable[[int], Iterable[int]]
KEY = "bft-indices"  # key of the hash among the registered objects
_ODD = 0x1E3779B97F4A7C15


class OwnOrder:
    """A script's ``indices`` over a dataset of a given length."""

    def __init__(self, indices: Indices, samples: int) -> None:
        self._indices = indices
        self._samples = samples
        self._cached: tuple[int, int] | None = None  # seed, epoch
        self._order = torch.empty(0, dtype=torch.long)
        self._known: dict[str, int] = {}  # of the last order used, by us or by the others
        first = self._asked(0, 0)
        self.order_id = _hash_of(first)
        if self.order_id != _hash_of(self._asked(0, 0)):
            raise _unsteady(0, "when it was asked again")

    def order(self, seed: int, epoch: int) -> torch.Tensor:
        """Return the order of an epoch.

        Raises:
            ElasticError: BFT-1425, these are no indices; BFT-1426, the others have another order.
        """
        if self._cached != (seed, epoch):
            self._order = self._asked(seed, epoch)
            self._cached = (seed, epoch)
            found = {"seed": seed, "epoch": epoch, "hash": _hash_of(self._order)}
            if {**self._known, "hash": 0} == {**found, "hash": 0} and self._known != found:
                raise _unsteady(epoch, "than the workers that began this epoch got")
            self._known = found
        return self._order

    def state_dict(self) -> dict[str, int]:
        """Return which order the run is in."""
        return dict(self._known)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take the run's order, to be compared with our own."""
        if state != self._known:
            self._known, self._cached = dict(state), None

    def _asked(self, seed: int, epoch: int) -> torch.Tensor:
        with _streams_of(seed, epoch, 7):
            given = self._indices(epoch)
            whole = given if isinstance(given, torch.Tensor) else list(given)
        try:
            order = torch.as_tensor(whole).cpu()
        except (TypeError, ValueError, RuntimeError) as problem:
            raise _refused(epoch, f"no sequence of integers ({problem})") from problem
        if order.numel() == 0:
            raise _refused(epoch, "no index")
        if order.ndim != 1 or order.is_floating_point() or order.dtype is torch.bool:
            raise _refused(epoch, f"{order.ndim} dimensions of {order.dtype}")
        order = order.long()
        if order.min() < 0 or order.max() >= self._samples:
            worst = order.min() if order.min() < 0 else order.max()
            raise _refused(epoch, f"the index {int(worst)} of a dataset of {self._samples} samples")
        return order


def _refused(epoch: int, what: str) -> ElasticError:
    return ElasticError(
        "BFT-1425",
        f"indices({epoch}) returned {what}.",
        "Return integers from 0 to the length of the dataset - 1, in one sequence.",
    )


def _unsteady(epoch: int, when: str) -> ElasticError:
    return ElasticError(
        "BFT-1426",
        f"indices({epoch}) returned another order {when}.",
        "Let it depend on the epoch alone. It may draw random numbers: torch, random and numpy are"
        " seeded for every call; a generator of its own must be made inside it.",
    )


def _hash_of(order: torch.Tensor) -> int:
    # On all of it and at the speed of memory; integers wrap around.
    mixed = (order + 1) * _ODD
    mixed ^= mixed >> 29
    places = torch.arange(len(order)) * 2 + 1
    return mix(len(order), int((mixed * places).sum()))


@contextmanager
def _streams_of(*numbers: int) -> Iterator[None]:
    """Seed the random streams of this process; put them back at the end."""
    numpy = sys.modules.get("numpy")
    own, numpys = random.getstate(), None if numpy is None else numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        try:
            seed_everything(*numbers)
            yield
        finally:
            random.setstate(own)
            if numpy is not None and numpys is not None:
                numpy.random.set_state(numpys)
