"""The state of a training run that all members share, and its copy at a step boundary.

It consists of the registered model, optimizer, scheduler and extra objects, exported as the
tensors and structures that a joiner or a checkpoint needs, and restored from them. Used by
``transfer`` (between members), ``checkpoint`` (disk) and ``run``.

``writer`` has a thread write the copy while the training goes on.
"""

from __future__ import annotations

import copy
import random
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from bftrainer.elastic.checkpoints import checkpoint, resharding
from bftrainer.elastic.network.shards import Cut, Shards, is_sharded, local_of
from bftrainer.elastic.process import reports
from bftrainer.elastic.script.batch import mix
from bftrainer.elastic.state.as_built import AsBuilt
from bftrainer.elastic.state.grouping import (
    drop_apart,
    foreign,
    grouping_of,
    regroup,
    unfit,
    with_apart,
)
from bftrainer.ground.errors import ElasticError

BEFORE_SCRIPT = 8  # tells this seed from those of generations, epochs and passes
# In the names of modules: by torch.compile and by checkpoint_wrapper.
_WRAPPERS = re.compile(r"\b(?:_orig_mod|_checkpoint_wrapped_module)\.")


@dataclass(slots=True, kw_only=True)
class Counters:
    """Position of the run; equal on all members between two steps."""

    seed: int
    step: int = 0  # committed updates
    epoch: int = 0
    position: int = 0  # samples of this epoch in committed updates
    samples: int = 0  # the same over all epochs
    is_complete: bool = False
    asked_epochs: int | None = None  # requested length when the run was completed
    asked_samples: int | None = None
    asked_steps: int | None = None

    @classmethod
    def known(cls, body: object) -> Counters:
        """Return the counters in an unverified checkpoint header."""
        counters = cls(seed=0)
        if isinstance(body, dict):
            for name in cls.__slots__:
                if isinstance(body.get(name), int):
                    setattr(counters, name, body[name])
        return counters

    def as_dict(self) -> dict[str, Any]:
        """Return all values that are set: earlier releases do not know ``asked_*``."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class State:
    """The registered objects of one script."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,  # of torch.optim, or several as one
        scheduler: Any,
        extra: Mapping[str, Any],
        *,
        shards: Shards | None = None,
    ) -> None:
        self.model = model
        self.shards = shards
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.extra = dict(extra)
        self._layouts: tuple[int, ...] | None = None
        self._within_epoch: dict[str, Any] | None = None  # see ``keep_within_epoch``
        self.calls: dict[str, Any] = {}  # mark of ``shared_values``
        self.remarks: list[dict[str, Any]] = []  # of ``remarks``, on the training so far
        _check(model, optimizer, scheduler, self.extra)
        self._as_built = AsBuilt(model, optimizer, is_sharded=shards is not None)

    def require_as_built(self) -> None:
        """Require that the state still has the parts that it was registered with.

        Raises:
            ElasticError: BFT-1401, the script exchanged a part of the model, or gave the optimizer
                parameters that are not in it.
        """
        self._as_built.require()

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the model's parameters, each once."""
        if self.shards is not None:  # the model may show gathered ones at the moment
            return self.shards.parameters
        return list(self.model.parameters())

    def buffers(self) -> list[torch.Tensor]:
        """Return the model's buffers (running averages and the like), each once."""
        return list(self.model.buffers())

    def model_tensors(self) -> list[torch.Tensor]:
        """Return parameters and buffers, of sharded ones this worker's part.

        Their layout is the same on all members with the same local rank.
        """
        return [*(local_of(p.detach()) for p in self.parameters()), *map(local_of, self.buffers())]

    def layout(self) -> int:
        """Return a number that differs when two members built different models.

        It does not depend on shards, nor on ``torch.compile`` and activation checkpointing.
        """
        return self.layouts[0]

    @property
    def layouts(self) -> tuple[int, ...]:
        """The layout, and as earlier releases had it."""
        if self._layouts is None:
            by_name = [*self.model.named_parameters(), *self.model.named_buffers()]
            if self.shards is not None:
                names = [name for name, _ in by_name]
                by_name = list(zip(names, [*self.shards.parameters, *self.buffers()], strict=True))
            unwrapped = [(_WRAPPERS.sub("", name), tensor) for name, tensor in by_name]
            self._layouts = (_layout_of(unwrapped), _layout_of(by_name))
        return self._layouts

    # ---- the rest: what is not in the model --------------------------------------

    def encode_rest(self, counters: Counters) -> tuple[Any, list[torch.Tensor]]:
        """Return structure and tensors of everything but the model, not copied."""
        with with_apart(self.optimizer, self.parameters()) as apart:
            tree = {
                "counters": counters.as_dict(),
                "trained": self._trained(),
                "grouping": grouping_of(self.optimizer, self.parameters()),
                "apart": apart,
                "optimizer": self.optimizer.state_dict(),
                "calls": self.calls,
                **self._user_state(),
            }
        if self._within_epoch is not None:
            tree["within_epoch"] = self._within_epoch
        if self.remarks:
            tree["remarks"] = self.remarks
        return checkpoint.encode(tree)

    def decode_rest(
        self, structure: Any, tensors: list[torch.Tensor], unloaded: Collection[str] = ()
    ) -> Counters:
        """Restore what ``encode_rest`` returned on any member.

        ``unloaded``: registered objects that stay as they are, "scheduler" among them.
        """
        tree = checkpoint.decode(structure, tensors, _wrapped if self.shards else None)
        self._train_only(tree["trained"])
        for p in self.parameters():
            p.grad = None
        try:
            if "grouping" in tree:  # earlier releases tell none
                regroup(self.optimizer, self.parameters(), tree["grouping"])
            self.optimizer.load_state_dict(tree["optimizer"])
            if "apart" in tree:
                drop_apart(self.optimizer, tree["apart"])
        except ValueError as problem:
            raise ElasticError(
                "BFT-1408",
                f"The optimizer of this worker does not fit the shared state: {problem}.",
                "Build the same optimizer in every worker, before Run.",
            ) from problem
        self._load_user_state(_without(tree, unloaded))
        self._within_epoch = tree.get("within_epoch")
        if self._within_epoch is not None:
            self._within_epoch = _without(self._within_epoch, unloaded)
        self.calls = tree.get("calls", {})  # earlier releases have none
        self.remarks = tree.get("remarks", [])
        return Counters(**tree["counters"])

    def options(self) -> list[dict[str, Any]]:
        """Return the optimizer's groups without their parameters, not copied."""
        return list(map(_options_of, self.optimizer.param_groups))

    def snapshot_light(self) -> dict[str, Any]:
        """Return a copy of the small state: groups, scheduler, extra; no tensors of the model."""
        light = {
            "groups": self.options(),
            "grouping": grouping_of(self.optimizer, self.parameters()),
            "trained": self._trained(),
            **self._user_state(),
        }
        return copy.deepcopy(light)

    def restore_light(self, snapshot: dict[str, Any]) -> None:
        """Restore the small state of a snapshot."""
        tree = copy.deepcopy(snapshot)
        if "grouping" in tree:  # one in a checkpoint of an earlier release has none
            regroup(self.optimizer, self.parameters(), tree["grouping"])
            self._train_only(tree["trained"])
        for group, values in zip(self.optimizer.param_groups, tree["groups"], strict=True):
            group.update(values)
        self._load_user_state(tree)

    def keep_within_epoch(self) -> None:
        """Keep the small state while an epoch that the run's length cuts short is as it was left.

        What the script does at the end of an epoch follows. If the run is asked for more, the
        epoch goes on and ends again, so that must take effect only then.
        """
        if self._within_epoch is None:
            self._within_epoch = self.snapshot_light()
            self._within_epoch["extra"].pop(reports.KEY)  # reports then are of now

    def resume_epoch(self) -> None:
        """Go on in such an epoch."""
        if self._within_epoch is not None:
            self.restore_light(self._within_epoch)
            self._within_epoch = None

    def _trained(self) -> list[bool]:
        return [p.requires_grad for p in self.parameters()]

    def _train_only(self, trained: Iterable[bool]) -> None:
        for p, is_trained in zip(self.parameters(), trained, strict=True):
            if p.requires_grad != is_trained:
                p.requires_grad_(is_trained)

    def _user_state(self) -> dict[str, Any]:
        scheduler = None
        if self.scheduler is not None:
            scheduler = self.scheduler.state_dict()
        extra = {name: thing.state_dict() for name, thing in self.extra.items()}
        return {"scheduler": scheduler, "extra": extra}

    def _load_user_state(self, tree: dict[str, Any]) -> None:
        if self.scheduler is not None and tree["scheduler"] is not None:
            self.scheduler.load_state_dict(tree["scheduler"])
        for name, thing in self.extra.items():
            if name in tree["extra"]:
                thing.load_state_dict(tree["extra"][name])

    def detach_storages(self) -> None:
        """Move the model to fresh memory: an abandoned transfer may write to the old one."""
        for tensor in [*self.parameters(), *self.buffers()]:
            tensor.data = tensor.data.clone()


def _options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(group)
    del options["params"]
    return options


def _layout_of(by_name: Iterable[tuple[str, torch.Tensor]]) -> int:
    text = ";".join(f"{name}:{t.dtype}:{tuple(t.shape)}" for name, t in by_name)
    data = text.encode()
    return mix(*(int.from_bytes(data[i : i + 7], "big") for i in range(0, len(data), 7)))


def _without(tree: dict[str, Any], unloaded: Collection[str]) -> dict[str, Any]:
    extra = {name: state for name, state in tree["extra"].items() if name not in unloaded}
    scheduler = None if "scheduler" in unloaded else tree["scheduler"]
    return {**tree, "scheduler": scheduler, "extra": extra}


def _wrapped(local: torch.Tensor, cut: list[Any]) -> Any:
    return Cut.read(cut).wrap(local)


def pack(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the concatenated bytes of tensors."""
    return torch.cat([t.detach().cpu().reshape(-1).view(torch.uint8) for t in tensors])


def unpack(flat: torch.Tensor, into: Iterable[torch.Tensor]) -> None:
    """Copy bytes from ``pack`` into tensors of the same types and shapes."""
    offset = 0
    with torch.no_grad():
        for target in into:
            end = offset + target.numel() * target.element_size()
            # A copy, because a view of another type must be aligned.
            target.copy_(flat[offset:end].clone().view(target.dtype).view(target.shape))
            offset = end


def seed_everything(*numbers: int) -> None:
    """Seed all random streams of this process from these numbers."""
    seed = mix(*numbers)
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def streams_of(*numbers: int) -> Iterator[None]:
    """Seed all random streams from these numbers; put back their states at the end."""
    numpy = sys.modules.get("numpy")
    state_of_python = random.getstate()
    if numpy is not None:
        state_of_numpy = numpy.random.get_state()
    n_devices = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    with torch.random.fork_rng(devices=range(n_devices)):
        try:
            seed_everything(*numbers)
            yield
        finally:
            random.setstate(state_of_python)
            if numpy is not None:
                numpy.random.set_state(state_of_numpy)


def part_streams(seed: int, rank: int) -> None:
    """Let torch's random numbers (dropout) differ by rank, unless the script has seeded torch."""
    if torch.initial_seed() == mix(seed, BEFORE_SCRIPT):
        torch.manual_seed(mix(seed, rank, BEFORE_SCRIPT))


def _check(model: Any, optimizer: Any, scheduler: Any, extra: dict[str, Any]) -> None:
    model_ids = set(map(id, model.parameters()))
    parameters: list[Any] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    if not model_ids.issuperset(map(id, parameters)):
        raise foreign()
    if not any(p.requires_grad for p in parameters):
        raise unfit(
            "The optimizer holds no parameter of the model that requires a gradient.",
            "Build the optimizer from model.parameters() before Run.",
        )
    for name, thing in {"scheduler": scheduler, **extra}.items():
        if thing is not None and not (
            hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
        ):
            raise unfit(
                f"{name!r} is a {type(thing).__name__} without state_dict/load_state_dict.",
                "Register objects with state_dict() and load_state_dict().",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """Header and tensors of a checkpoint."""

    header: dict[str, Any]
    tensors: list[torch.Tensor]


class Snapshots:
    """Takes snapshots; each overwrites the tensors of the previous one."""

    def __init__(self, state: State, origin: Mapping[str, Any] | None = None) -> None:
        self._state = state
        self._origin = origin or {}  # what headers have of the run
        self._memory: list[torch.Tensor] = []
        self._is_prepared = False  # whether memory for the next one was prepared

    def collect(self, counters: Counters) -> StateSnapshot:
        """Return the state itself, not copied: valid until the next step."""
        structure, other_tensors = self._state.encode_rest(counters)
        header = {
            "layout": self._state.layout(),
            "counters": counters.as_dict(),
            "structure": structure,
            **reports.trial_mark(),
            **self._origin,
        }
        model_tensors = self._state.model_tensors()
        if (shards := self._state.shards) is not None:
            cuts = [Cut.of(p) if is_sharded(p) else None for p in shards.parameters]
            cuts += [None] * (len(model_tensors) - len(cuts))
            cuts += checkpoint.cuts_of(structure, other_tensors)
            header |= resharding.marks(shards.node, cuts)
        return StateSnapshot(header=header, tensors=[*model_tensors, *other_tensors])

    def preparation(self, counters: Counters) -> Callable[[], None] | None:
        """Return a function that allocates the snapshot's memory, to be run in a thread.

        None if memory of the right shape exists, or was prepared once and the state changed
        its shape since. Getting memory from the kernel takes longer than copying.
        """
        now = self.collect(counters)
        if self._is_prepared or _kinds(self._memory) == _kinds(now.tensors):
            return None
        self._is_prepared = True
        return partial(self._make_memory, now)

    def _make_memory(self, snapshot: StateSnapshot) -> None:
        """Allocate; reads only shapes, as the training may be changing the contents."""
        fresh = [torch.empty(t.shape, dtype=t.dtype) for t in snapshot.tensors]
        for tensor in fresh:
            tensor.zero_()
        self._memory = fresh

    def take(self, counters: Counters) -> StateSnapshot:
        """Return a copy of the state as it is now."""
        now = self.collect(counters)
        self._is_prepared = False
        if _kinds(self._memory) == _kinds(now.tensors):
            for copy, tensor in zip(self._memory, now.tensors, strict=True):
                copy.copy_(tensor)
        else:
            self._memory = [t.detach().cpu().clone() for t in now.tensors]
        return StateSnapshot(header=now.header, tensors=self._memory)


def _kinds(tensors: list[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(t.shape, t.dtype) for t in tensors]
