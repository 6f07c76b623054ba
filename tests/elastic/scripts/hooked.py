"""The journal of ``train_ids.py`` for scripts whose loop belongs to a framework.

``fail_at`` in the settings ([step, rank, number]) lets that rank's collective, the first or
another one of the step, fail where those of the others succeed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from holding import hold  # type: ignore[import-not-found]  # beside this script
from torch.utils.data import Dataset

from bftrainer.elastic.network import group
from bftrainer.elastic.network.group import Broken

directory = Path(os.environ["BFT_TEST_DIR"])
_journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)
_attempt = [0]
settings: dict[str, Any] = {
    "elastic": True,
    "samples": 75,
    "batch": 8,
    "accumulate": 1,
    "epochs": 3,
    "delay_s": 0.0,
    "bf16": False,
    "evaluate": False,
    "drop_last": False,
    "logical": 0,  # of bitwise mode
    "dropout": 0.0,
    "norm": False,
    "tokens": False,  # a language model, with more padding in some texts than in others
    "sharded": False,
    "whole_state": False,  # is saved by transformers, with the optimizer
    "patience": 0,  # epochs to go on for, with a score that never improves
    "last": 0,  # ModelCheckpoints of Lightning that keep a last.ckpt in the same folder
    "fail_at": None,
    "mutation": "",  # what the last worker of a generation does otherwise, see ``meddling``
    "odd": False,  # this worker has other data, if the mutation is of data
    "scaled": False,  # the loss, as for half precision
    "plateau": False,  # a schedule that follows the validation loss
    "holds": [],  # [step, generation]: that step not before this generation can be entered
    **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"),
}


class Tokens(Dataset[Any]):
    """Random tokens whose label can be learnt from them."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, 64, (count, 6), generator=generator)
        if settings["odd"] and settings["mutation"] == "order":  # as files are listed elsewhere
            self.tokens = self.tokens.flip(0)
        if settings["odd"] and settings["mutation"] == "data":  # as another copy of the files
            self.tokens = (self.tokens + 1) % 64

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Any]:
        tokens = self.tokens[i]
        if settings["tokens"]:
            kept = torch.arange(6) <= 1 + i * i % 5
            return {"sample": i, "input_ids": tokens, "labels": torch.where(kept, tokens, -100)}
        return {"sample": i, "input_ids": tokens, "labels": int(tokens[0] > 31)}


def note(kind: str, **what: object) -> None:
    """Write one entry of this process's journal."""
    _journal.write(json.dumps({"kind": kind, "pid": os.getpid(), **what}) + "\n")


def works_on(run: Any, ids: torch.Tensor) -> None:
    """Note which samples are worked on; ``run`` is None without the hook."""
    if run is not None and not run.rehearsing:
        hold(run, settings["holds"])
        note(
            "try",
            generation=run.generation,
            attempt=_attempt[0],
            step=run.step_count + 1,
            epoch=run.epoch,
            ids=ids.tolist(),
        )
    if settings["delay_s"]:
        time.sleep(settings["delay_s"])


def saw(kind: str, run: Any, step: int, **what: object) -> None:
    """Note that the framework called a callback of this worker."""
    note(kind, rank=0 if run is None else run.rank, step=step, **what)


def bitwise() -> Any:
    """Return the logical workers that the settings ask for."""
    from bftrainer import elastic

    return elastic.LogicalWorkers(settings["logical"]) if settings["logical"] else None


def follow(run: Any, model: torch.nn.Module, counted: Callable[[], dict[str, Any]]) -> None:
    """Note what happens to a run; ``counted`` gives the framework's own counters."""

    def entered(info: Any) -> None:
        _attempt[0] = info.attempt
        note("entered", generation=info.generation, rank=info.rank, size=info.size)

    def committed(info: Any) -> None:
        note("commit", generation=info.generation, attempt=info.attempt, step=info.step)

    def ended(info: Any) -> None:
        sums = str([_local(p.detach()).double().sum().item() for p in model.parameters()])
        where = {"generation": info.generation, "attempt": info.attempt, "step": info.step}
        # What workers with the same shard have in common.
        own = {"shard": run.local_rank, "hash": f"{sums} {counted()}"}
        note("end", **where, **own, sums=sums, counted=str(counted()))

    run.on_entered(entered)
    run.on_committed(committed)
    run.on_generation_end(ended)
    if settings["fail_at"] is not None:
        _fail_once(run)


def _fail_once(run: Any) -> None:
    real_settle = group.settle
    *where, number = settings["fail_at"]
    awaited = [0]

    def settle(work: Any, abandoned: Callable[[], bool]) -> Broken | None:
        outcome = real_settle(work, abandoned)
        if [run.step_count + 1, run.rank] == where:
            awaited[0] += 1
            if awaited[0] == number:
                return Broken(reason="injected")
        return outcome

    group.settle = settle


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def shard(*modules: torch.nn.Module) -> None:
    """Shard modules over the workers of the node, if the settings say so."""
    if settings["sharded"]:
        from torch.distributed.fsdp import fully_shard

        from bftrainer import elastic

        for module in modules:
            fully_shard(module, mesh=elastic.node_mesh())


def finish(model: torch.nn.Module, *, is_first: bool, **counted: Any) -> None:
    """Write the result on rank 0, once the workers of its node have gathered it."""
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    if not is_first:
        return
    parameters = [p.detach().flatten().tolist() for p in whole]
    (directory / "result.json").write_text(json.dumps({"parameters": parameters, **counted}))
