"""The notes of a worker for ``bftrainer try``: its samples, losses and updates.

Off unless ``$BFT_RECORD_SAMPLES`` names a directory. Every process appends JSON lines to files of
its own, a batch's before the script gets it: a worker may be killed in a step that others commit.
``bftrainer.lab.try_records`` and ``try_figures`` put them together.

A state says which generation made its last update (``MadeBy``), so that they can follow what the
run really went on with. Generations are named after their tokens, which are unique, by a digest.

Figures of updates are taken only with ``$BFT_RECORD_UPDATES``. They are what an update is made of:
options, scheduler, gradients and parameters *before* it. Of a gradient the norm is kept, of a
parameter a sketch: elements are added up, with signs drawn once for all, in ``WIDTH`` sums. The
distance of two sketches estimates that of the two tensors, and any one element counts in full
(Charikar, Chen and Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002). Names are
written once, options when they change; all is bounded by ``MOST_BYTES`` for each process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from bftrainer.elastic.network.shards import local_of
from bftrainer.elastic.process.generations import GenerationInfo
from bftrainer.elastic.script import torch_compat
from bftrainer.ground.process import own_name

if TYPE_CHECKING:
    from bftrainer.elastic.gradients.loss_rule import LossRule
    from bftrainer.elastic.state.state import State

RECORD: Final = "BFT_RECORD_SAMPLES"  # names the directory
UPDATES: Final = "BFT_RECORD_UPDATES"  # set: figures of updates, too
KEY: Final = "bft-made-by"  # of the mark among the registered objects
WIDTH: Final = 16  # sums of a sketch; their distance is right within a quarter or so
MOST_NUMBERS: Final = 2048  # of all sketches of an update; more parameters have narrower ones
MOST_LEAVES: Final = 64  # options, of the scheduler and extra state together
MOST_BYTES: Final = 32 << 20  # of figures of updates, of one process
LOOKS: Final = 4  # at the graph of a loss
MOST_NODES: Final = 4096  # of it
TENSOR_RANKS: Final = 2  # ranks below it note tensors: the second in case the first is killed
_SIGNS_SEED: Final = 7
_WRAPPER: Final = re.compile(r"\b(?:_orig_mod|_checkpoint_wrapped_module)\.")


class MadeBy:
    """The generation that made the last update in the state; the state has it."""

    def __init__(self) -> None:
        self.group, self.step = "", 0

    def state_dict(self) -> dict[str, Any]:
        """Return the mark."""
        return {"group": self.group, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.group, self.step = state["group"], state["step"]


def wanted(token: Callable[[], str]) -> SampleRecord | None:
    """Return the record of this process; None: nobody wants it.

    Args:
        token: returns the token of the present generation.
    """
    directory = os.environ.get(RECORD)
    if not directory:
        return None
    return SampleRecord(Path(directory), token)


class SampleRecord:
    """Notes which samples a worker was handed, their losses, and which updates it committed."""

    def __init__(self, directory: Path, token: Callable[[], str]) -> None:
        """Open this process's file; ``token``: as in ``wanted``."""
        self._out = (directory / f"samples-{own_name()}.jsonl").open("a", buffering=1)
        self._directory, self._token = directory, token
        self._updates: UpdateRecord | None = None
        self.made_by = MadeBy()

    def watch_updates(self, state: State, leaves: Callable[[], Mapping[str, Any]]) -> None:
        """Note figures of the updates of ``state``, if they are wanted.

        ``leaves`` returns options, scheduler and small extra state by their names.
        """
        if os.environ.get(UPDATES):
            self._updates = UpdateRecord(self._directory, state, leaves)

    def watch_roots(self, rule: LossRule) -> None:
        """See what gradients are taken of, beside whoever sees it already."""
        updates, tell = self._updates, rule.on_roots
        if updates is None:
            return

        def see(roots: Sequence[Any]) -> None:
            updates.saw(roots)
            if tell is not None:
                tell(roots)

        rule.on_roots = see

    def handed(self, info: GenerationInfo, indices: Sequence[int], **where: int) -> None:
        """Note the samples of a pass.

        ``where``: ``at``, the place of the first in the epoch; ``of``, the epoch's samples;
        ``number`` of the pass; ``may_repeat``: the order is the script's own.
        """
        self._write("handed", info, epoch=info.epoch, indices=list(indices), **where)

    def lost(self, info: GenerationInfo, loss: float, rule: LossRule) -> None:
        """Note the loss of a pass, or of a part of one, and how passes are put together."""
        weight = rule.samples if rule.given is None else rule.given
        number = rule.passes
        self._write("loss", info, loss=loss, weight=weight, number=number, reduction=rule.kind)

    def entered(self, info: GenerationInfo) -> None:
        """Note that a generation begins, after ``step`` updates, and who made the last of them."""
        facts: dict[str, object] = {"samples": info.samples, "at_s": time.time()}
        if self.made_by.step == info.step:  # else the state is of a worker without a record
            facts["from"] = self.made_by.group
        self._write("entered", info, **facts)

    def before_update(self, info: GenerationInfo, batch: int) -> None:
        """Note what the next update is made of; ``batch``: samples of all workers."""
        if self._updates is not None:
            self._updates.note(self._where(info), batch)

    def committed(self, info: GenerationInfo) -> None:
        """Note an update."""
        self.made_by.group, self.made_by.step = self._group(), info.step
        self._write("committed", info, samples=info.samples, at_s=time.time())

    def finished(self, info: GenerationInfo) -> None:
        """Note that the run is over."""
        self._write("finished", info)

    def _write(self, kind: str, info: GenerationInfo, **facts: object) -> None:
        self._out.write(json.dumps({"kind": kind, **facts, **self._where(info)}) + "\n")

    def _where(self, info: GenerationInfo) -> dict[str, Any]:
        return {
            "generation": info.generation,
            "attempt": info.attempt,
            "group": self._group(),
            "step": info.step,
            "rank": info.rank,
            "size": info.size,
        }

    def _group(self) -> str:
        return hashlib.blake2b(self._token().encode(), digest_size=6).hexdigest()


class UpdateRecord:
    """Figures of each update, before it is applied."""

    def __init__(
        self, directory: Path, state: State, leaves: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._out = (directory / f"updates-{own_name()}.jsonl").open("a", buffering=1)
        self._leaves, self._left_bytes = leaves, MOST_BYTES
        self._looks_left = LOOKS
        self._before: Mapping[str, Any] = {}
        self._parameters: list[torch.nn.Parameter] = []
        if state.shards is None:  # parts of sharded tensors are other ones at another size
            self._parameters = state.parameters()
        self._width = max(1, min(WIDTH, MOST_NUMBERS // max(1, len(self._parameters))))
        self._signs: dict[tuple[int, torch.device, torch.dtype], torch.Tensor] = {}
        names = {id(p): name for name, p in state.model.named_parameters()}
        self._write(
            {
                "kind": "model",
                "names": [_WRAPPER.sub("", names.get(id(p), "?")) for p in self._parameters],
                "types": [str(p.dtype).removeprefix("torch.") for p in self._parameters],
                "random": list(_random_layers(state.model)),
                "over_batch": list(_layers_over_batch(state.model)),
            }
        )

    def saw(self, roots: Sequence[Any]) -> None:
        """Note the types of what a loss was computed from: autocast has coarser ones."""
        if self._looks_left > 0:
            self._looks_left -= 1
            types: set[str] = set()
            for root in roots:
                types |= _types_below(root)
            self._write({"kind": "computed", "in": sorted(types)})

    def note(self, where: Mapping[str, Any], batch: int) -> None:
        """Note the update that is about to be made."""
        if self._left_bytes <= 0:
            return
        now, before = dict(list(self._leaves().items())[:MOST_LEAVES]), self._before
        changes = {
            name: value
            for name, value in now.items()
            if name not in before or before[name] != value
        }
        line = {
            "kind": "update",
            **where,
            "batch": batch,
            "changed": changes,
            "gone": [name for name in before if name not in now],
        }
        self._before = now
        if where["rank"] < TENSOR_RANKS and self._parameters:
            line |= self._tensors()
        self._write(line)

    def _tensors(self) -> dict[str, Any]:
        with torch.no_grad():
            norms = [_norm(p.grad) for p in self._parameters]
            sketches = [self._sketch(p.detach()).double().cpu() for p in self._parameters]
        return {"norms": norms, "sketches": list(map(_rounded, sketches))}

    def _sketch(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        dtype = tensor.dtype if tensor.dtype == torch.float64 else torch.float32
        flat: torch.Tensor = local_of(tensor).reshape(-1).to(dtype)
        rows = flat.numel() // self._width
        if rows < 2:
            return flat
        whole = rows * self._width
        key = rows, flat.device, dtype
        if key not in self._signs:
            source = torch.Generator().manual_seed(_SIGNS_SEED)
            bits = torch.randint(0, 2, (rows,), generator=source, dtype=torch.int8)
            self._signs[key] = (2 * bits - 1).to(flat.device, dtype)
        sums: torch.Tensor = self._signs[key] @ flat[:whole].view(rows, self._width)
        sums[: flat.numel() - whole] += flat[whole:]
        return sums

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line) + "\n"
        self._left_bytes -= len(text)
        self._out.write(text)


def _rounded(sketch: torch.Tensor) -> list[float]:
    return [float(f"{element:.10g}") for element in sketch.tolist()]


def _types_below(root: Any) -> set[str]:
    """Return the types of the values in the graph of a loss."""
    types: set[str] = set()
    nodes: list[Any] = [getattr(root, "grad_fn", None)]
    visited: set[Any] = set()
    while nodes and len(visited) < MOST_NODES:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        for metadata in torch_compat.metadata_of(node):
            types.add(str(metadata.dtype).removeprefix("torch."))
        nodes += [below for below, _ in node.next_functions]
    return types


def _norm(gradient: torch.Tensor | None) -> float | None:
    if gradient is None:
        return None
    if gradient.dtype != torch.float64 and not gradient.is_complex():
        gradient = gradient.float()
    norm: torch.Tensor = torch.linalg.vector_norm(gradient)
    return norm.item()


def _random_layers(model: torch.nn.Module) -> Iterator[str]:
    """Yield the layers that draw random numbers, as far as their classes tell."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        rate = getattr(module, "p" if "Drop" in kind else "dropout", 0.0)
        if isinstance(rate, float | int) and rate > 0.0 and not isinstance(rate, bool):
            yield f"{_WRAPPER.sub('', name) or 'model'} ({kind})"


def _layers_over_batch(model: torch.nn.Module) -> Iterator[str]:
    """Yield the layers that normalise by the whole batch."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, torch_compat.BATCH_NORM) or "BatchNorm" in kind:
            yield f"{_WRAPPER.sub('', name) or 'model'} ({kind})"
