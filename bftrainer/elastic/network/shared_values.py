"""Values that all members compute together: ``run.mean``, ``run.sum`` and ``run.max``.

Calls are numbered within a generation, because all its members make the same ones. Each member
publishes what it gives to a call in the generation's store and reads what the others gave. The
sums are made in the order of ranks by every member, so all get the same bits. The store, and not
a collective, since a member may be elsewhere: a collective would take its gradients for a value.

A call whose members are not all there never waits for ever:

* A member that waits in ``run.step()`` for longer than ``SLOW_S`` publishes that it is there. Those
  that wait in a call end with an error that names both places.
* A member that is lost has the daemon announce another generation. Those that remain repeat the
  call among themselves in its store, before they enter it at the next boundary. Who had the result
  already hands it on; who is a committed step behind takes no part, since it will get the state.
* A change of size without a loss waits: the members enter it at the next boundary.

Used by ``run``.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from bftrainer import ground
from bftrainer.elastic.network.collective import AbandonableCall, Broken
from bftrainer.elastic.network.group import Meeting
from bftrainer.elastic.process.control import Control, key_of
from bftrainer.elastic.process.store import StoreClient
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import Commit

SLOW_S: Final = 2.0  # in step(), before a member says that it is there
PAUSE_S: Final = 1.0  # between two looks at a step is another wait
MOST_ELEMENTS: Final = 4096  # of one value: it goes through the store as text
FOREVER_S: Final = 1e6  # what sockets and locks can wait for
MEAN, SUM, MAX = "mean", "sum", "max"
END = "end"  # of the training, before its length
PAGE: Final = "docs/howto/same-on-all-workers.md"
_LIBRARIES: Final = tuple(
    Path(module.__file__).parent for module in (torch, json, ground) if module.__file__ is not None
)
_OWN: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What a member gives to a call, or where else it is."""

    number: int  # of the call; of a member that is elsewhere, the calls it has made
    step: int  # committed updates
    place: str  # in the script
    kind: str = ""  # MEAN, SUM, MAX or END; "" elsewhere
    values: tuple[float, ...] = ()
    weight: float = 1.0
    last: tuple[float, ...] = ()  # result of the call before

    def encode(self) -> bytes:
        """Return it as JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, data: bytes) -> Contribution:
        """Return what another member encoded."""
        body: dict[str, Any] = json.loads(data)
        for name in ("values", "last"):
            body[name] = tuple(body[name])
        return cls(**body)


def combined(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """Return the result of a call; the order of the contributions is that of the additions.

    A mean is weighted, NaN without any weight. The maximum is NaN if a value is.
    """
    kind = contributions[0].kind
    columns = list(zip(*(entry.values for entry in contributions), strict=True))
    if kind == MAX:
        return tuple(map(_maximum, columns))
    weights = [1.0] * len(contributions)
    if kind == MEAN:
        weights = [entry.weight for entry in contributions]
    sums: list[float] = []
    for column in columns:
        total = 0.0
        for weight, value in zip(weights, column, strict=True):
            if weight:  # what counts for nothing may be NaN
                total += weight * value
        sums.append(total)
    if kind == SUM:
        return tuple(sums)
    whole = sum(weights)
    if not whole:
        return (math.nan,) * len(sums)
    return tuple(total / whole for total in sums)


def _maximum(values: Sequence[float]) -> float:
    # Python's ``max`` depends on the place of a NaN.
    return math.nan if any(map(math.isnan, values)) else max(values)


def place_in_script() -> str:
    """Return file and line of the script's present statement, which called this package.

    Gradients are reduced in a hook of torch's, so the nearest frame is not always the script's.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the stack, cheaply
    nearest = ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        nearest = f"{path.name}:{frame.f_lineno}"
        if not _is_library(path):
            break
        frame = frame.f_back
    return nearest


def _is_library(path: Path) -> bool:
    if path.is_relative_to(_OWN):
        return True
    return any(path.is_relative_to(place) for place in _LIBRARIES)


@dataclass(slots=True)
class Board:
    """What the members of a generation publish in its store, one entry after the other."""

    meeting: Meeting
    entered: str  # the generation that the members are in: this one, or the one before
    own_rank: int
    alive: frozenset[int]  # ranks of the generation entered that are in this one
    published: int = 0
    read: dict[int, int] = field(default_factory=dict)  # rank -> entries read
    lock: threading.Lock = field(default_factory=threading.Lock)

    def publish(self, entry: Contribution) -> None:
        """Publish the next entry of this member."""
        with self.lock:
            client = self.meeting.connect()
            try:
                key = self._key(self.own_rank, self.published)
                client.set(key, entry.encode())
                client.get(key)  # it has arrived
            finally:
                client.close()
            self.published += 1

    def next_of(self, client: StoreClient, rank: int) -> Contribution:
        """Wait for the next entry of a member."""
        place = self.read.get(rank, 0)
        entry = Contribution.decode(client.get(self._key(rank, place)))
        self.read[rank] = place + 1
        return entry

    def _key(self, rank: int, place: int) -> str:
        return f"{self.meeting.prefix}/value/{self.entered}/{rank}/{place}"


class SharedValues:
    """The calls of one member."""

    def __init__(
        self,
        control: Control,
        newer: Callable[[], Commit | None],
    ) -> None:
        """Prepare.

        Args:
            control: wakes those who wait.
            newer: returns a commit that this worker has not acted on.
        """
        self._control, self._newer = control, newer
        self._number = 0  # calls made in this generation
        self._last: tuple[float, ...] = ()  # result of the last one
        self._commit: Commit | None = None
        self._rank, self._per_node = 0, 1
        self._boards: dict[tuple[int, int], Board] = {}
        self._waits_since_s = self._looked_s = -math.inf
        self._has_told = False

    def begin(self, commit: Commit | None, rank: int, per_node: int) -> None:
        """Begin a generation."""
        self._commit, self._rank, self._per_node = commit, rank, per_node
        self._number, self._last = 0, ()
        self._boards = {}

    def combine(
        self,
        kind: str,
        values: Sequence[float],
        *,
        weight: float,
        step: int,
        ranks: Sequence[int],
    ) -> tuple[float, ...]:
        """Return the common result.

        Args:
            kind: MEAN, SUM, MAX or END.
            values: of this member.
            weight: of this member's values in a mean.
            step: committed updates.
            ranks: members that make this call.

        Raises:
            ElasticError: BFT-1437, another member is elsewhere in the script; BFT-1434, where one
                of them ends the training.
        """
        mine = Contribution(
            number=self._number,
            step=step,
            place=place_in_script(),
            kind=kind,
            values=tuple(values),
            weight=weight,
            last=self._last,
        )
        result = combined([mine]) if len(ranks) == 1 else self._exchanged(mine, tuple(ranks))
        self._number, self._last = self._number + 1, result
        return result

    def _exchanged(self, own: Contribution, ranks: tuple[int, ...]) -> tuple[float, ...]:
        commit = self._commit
        while True:
            if commit is None:
                raise RuntimeError("a generation of several members has a commit")
            if not commit.members:  # all leave at the next boundary
                return combined([own])
            gather = partial(_gather, self._board(commit), own, ranks)
            call = AbandonableCall(self._control, gather)
            overtaken = self._overtaken(commit)
            outcome = call.wait(overtaken, FOREVER_S)
            if not isinstance(outcome, Broken):
                return outcome
            commit = self._after(overtaken, outcome)

    def _overtaken(self, commit: Commit) -> Callable[[], bool]:
        def is_overtaken() -> bool:
            newer = self._newer()
            return newer is not None and newer.abandon and key_of(newer) > key_of(commit)

        return is_overtaken

    def _after(self, overtaken: Callable[[], bool], broken: Broken) -> Commit:
        """Wait for the generation that follows a lost member."""
        while not overtaken():
            self._control.wait_until(overtaken, 1.0)
        newer = self._newer()
        if newer is None:
            raise RuntimeError(broken.reason)
        return newer

    def _board(self, commit: Commit) -> Board:
        """Return the board of a generation: of ours, or of one that follows a loss."""
        key = key_of(commit)
        if key not in self._boards:
            present = self._commit
            if present is None:
                raise RuntimeError("no generation was entered")
            staying = {member.worker_id for member in commit.members}
            alive: set[int] = set()
            for member in present.members:
                if member.worker_id in staying:
                    first = member.rank * self._per_node
                    alive.update(range(first, first + self._per_node))
            size = len(commit.members) * self._per_node
            self._boards[key] = Board(
                meeting=Meeting(commit=commit, rank=self._rank, size=size),
                entered=f"{present.generation}.{present.attempt}",
                own_rank=self._rank,
                alive=frozenset(alive),
            )
        return self._boards[key]

    @property
    def mark(self) -> dict[str, Any]:
        """The number of calls and the last result, for a member that did not make them."""
        return {"number": self._number, "last": list(self._last)}

    def resume(self, mark: Mapping[str, Any]) -> None:
        """Go on after the calls of another member; an empty mark is that of nobody."""
        if mark:
            self._number, self._last = mark["number"], tuple(mark["last"])

    # ---- elsewhere -------------------------------------------------------------------

    def waits_in_step(self, step: int) -> None:
        """Note that this member waits in ``step()``; called again and again."""
        now_s = time.monotonic()
        if now_s - self._looked_s > PAUSE_S:
            self._waits_since_s, self._has_told = now_s, False
        self._looked_s = now_s
        if not self._has_told and now_s - self._waits_since_s > SLOW_S:
            self._has_told = True
            self._tell(self._commit, step)

    def enters(self, commit: Commit, step: int) -> None:
        """Tell those that repeat a call that this member does not: it is at a boundary."""
        if commit.abandon and self._commit is not None:
            self._tell(commit, step)

    def _tell(self, commit: Commit | None, step: int) -> None:
        present = self._commit
        if commit is None or present is None or len(present.members) * self._per_node == 1:
            return
        elsewhere = Contribution(
            number=self._number, step=step, place=place_in_script(), last=self._last
        )
        board = self._board(commit)
        AbandonableCall(self._control, lambda: board.publish(elsewhere))


def _gather(board: Board, own: Contribution, ranks: Sequence[int]) -> tuple[float, ...]:
    """Publish what this member gives, and return the result of the call."""
    board.publish(own)
    client = board.meeting.connect()
    client.limit(FOREVER_S)
    try:
        answers = [_entry_for(board, client, rank, own) for rank in ranks if rank in board.alive]
    finally:
        client.close()
    entries = [entry for entry in answers if entry is not None] or [own]
    for entry in entries:
        if entry.number == own.number + 1 and entry.last:
            return entry.last  # it had the result before a member was lost
    for entry in entries:
        if (entry.number, entry.kind, len(entry.values)) != _shape_of(own):
            raise _apart(own, entry)
    return combined(entries)


def _shape_of(own: Contribution) -> tuple[int, str, int]:
    return own.number, own.kind, len(own.values)


def _entry_for(
    board: Board, client: StoreClient, rank: int, own: Contribution
) -> Contribution | None:
    """Return what a member gave to this call; None if it will be given the state instead."""
    while True:
        entry = own if rank == board.own_rank else board.next_of(client, rank)
        if entry.number > own.number or (entry.kind and entry.number == own.number):
            return entry
        if entry.kind:
            continue  # a call of those with samples, when this member had none
        if board.meeting.commit.abandon and entry.step < own.step:
            return None
        if entry.step >= own.step:
            raise _apart(own, entry)
        # It waited in an earlier step, for a member that was slow.


def _apart(own: Contribution, other: Contribution) -> ElasticError:
    place, other_place = sorted((_at(own), _at(other)))
    if END in (own.kind, other.kind):
        return ElasticError(
            "BFT-1434",
            f"Some workers are at {place}, others at {other_place}, after {own.step} updates.",
            "Decide whether to end early by values that are the same on all workers"
            f" (run.mean(value), run.step_count), see {PAGE}.",
        )
    return ElasticError(
        "BFT-1437",
        f"Some workers are at {place}, others at {other_place}, after {own.step} updates.",
        f"Call run.mean(), run.sum() and run.max() on all workers, not on one alone, see {PAGE}.",
    )


def _at(entry: Contribution) -> str:
    if not entry.kind:
        return f"an update ({entry.place})"
    if entry.kind == END:
        return f"the end of their training ({entry.place})"
    return f"run.{entry.kind}() ({entry.place}), call {entry.number + 1}"


# ---- what a script gives ---------------------------------------------------------------------


def numbers_in(value: Any) -> tuple[list[float], Callable[[Sequence[float]], Any]]:
    """Return the numbers of a value, and what makes such a value of numbers again.

    Raises:
        ElasticError: BFT-1436, it is no number and no small tensor of numbers.
    """
    if isinstance(value, torch.Tensor):
        if value.numel() > MOST_ELEMENTS or value.is_complex():
            raise _unfit(f"a tensor of {value.numel()} elements of type {value.dtype}")
        tensor = value.detach()
        dtype = tensor.dtype if tensor.is_floating_point() else torch.float64

        def as_tensor(numbers: Sequence[float]) -> torch.Tensor:
            flat = torch.tensor(list(numbers), dtype=torch.float64, device=tensor.device)
            return flat.to(dtype).reshape(tensor.shape)

        numbers = tensor.reshape(-1).to(device="cpu", dtype=torch.float64).tolist()
        return numbers, as_tensor
    try:
        return [float(value)], lambda numbers: numbers[0]
    except (TypeError, ValueError):
        raise _unfit(f"a {type(value).__name__}") from None


def _unfit(what: str) -> ElasticError:
    return ElasticError(
        "BFT-1436",
        f"run.mean(), run.sum() or run.max() was given {what}.",
        f"Give a number, or a tensor of at most {MOST_ELEMENTS} of them.",
    )
