"""Frameworks that would shard a model themselves, and what torch and they say of it.

They want to be started as one of several processes and form a process group of their own. In a
worker some raise, each in its own words, and some train without sharding and say nothing; both
becomes BFT-1420 with what to do instead. Standard library only. Used by ``worker``,
``models`` and the hooks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection

from bftrainer.elastic.script import accelerate_compat
from bftrainer.ground.errors import ElasticError

_FSDP_ALONE = "only works in distributed training"  # of transformers' Trainer
_FSDP_NO_GPU = ("requires a GPU accelerator", "GPU accelerator is not used")  # of Lightning's
_NO_COPY = "FSDP does not support deepcopy"


def own_sharding(cause: str, option: str = "fsdp") -> ElasticError:
    """Return the error of a framework that shards; ``option``: how it was told to."""
    return ElasticError(
        "BFT-1420",
        f"{cause}, which shards the model over a process group of its own.",
        f"Remove {option} and shard the model in the script:"
        " fully_shard(module, mesh=elastic.node_mesh()). See"
        " docs/howto/train-huggingface-lightning.md.",
    )


def refuse_accelerate() -> None:
    """Refuse what Accelerate was told to do and does not do in a single process.

    Raises:
        ElasticError: BFT-1420, it was told to shard.
    """
    state = sys.modules.get("accelerate.state")
    if state is None:
        return
    settings = accelerate_compat.state_of(state)
    is_requested = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if is_requested or settings.get("fsdp_plugin") is not None:
        raise own_sharding("Accelerate is set up for FSDP", "the FSDP plugin (ACCELERATE_USE_FSDP)")
    if getattr(settings.get("parallelism_config"), "total_size", 1) > 1:
        raise _parallelism()


def _parallelism() -> ElasticError:
    return own_sharding("Accelerate was given a ParallelismConfig", "it")


def explained(problem: BaseException, modules: Collection[str]) -> ElasticError | None:
    """Return our error for what torch or a framework raised about sharding; None: it is another.

    ``modules``: whose code was running.
    """
    text = str(problem)
    packages = {name.partition(".")[0] for name in modules}
    if isinstance(problem, ValueError) and "transformers" in packages and _FSDP_ALONE in text:
        return own_sharding("The Trainer is set up for FSDP")
    is_fsdp = "fsdp" in text.lower() and any(words in text for words in _FSDP_NO_GPU)
    if is_fsdp and packages & {"lightning", "pytorch_lightning"}:
        return own_sharding("The Trainer uses FSDPStrategy", "strategy")
    if "accelerate.parallelism_config" in modules and "rendezvous" in text:
        return _parallelism()
    if _NO_COPY in text:
        return ElasticError(
            "BFT-1401",
            "A model was copied that fully_shard has sharded, which torch does not do.",
            "Copy the model (AveragedModel) before fully_shard, and shard the copy, too.",
        )
    return None
