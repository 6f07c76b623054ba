"""The environment of a program. Pure.

The names are part of the contract in docs/howto/train-command.md. Called by ``keeper``.
"""

from __future__ import annotations

from collections.abc import Mapping

from bftrainer.elastic.protocol import Commit, WorkerConfig


def program_environment(
    config: WorkerConfig,
    commit: Commit,
    rank: int,
    *,
    checkpoint_dir: str,
    control_file: str,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment of the program; the user's variables override ours.

    ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` are those of
    ``torch.distributed``'s ``env://``, with one process per node.
    """
    members = sorted(commit.members, key=lambda m: m.rank)
    told = {
        "BFT_TRAINER": config.trainer_id,
        "BFT_GENERATION": str(commit.generation),
        "BFT_SIZE": str(len(members)),
        "BFT_RANK": str(rank),
        "BFT_NODES": ",".join(m.node for m in members),
        "BFT_ADDRESSES": ",".join(m.address for m in members),
        "BFT_CHECKPOINT_DIR": checkpoint_dir,
        "BFT_CHECKPOINT_INTERVAL_S": f"{config.checkpoint_interval_s:g}",
        "BFT_CONTROL_FILE": control_file,
        "MASTER_ADDR": commit.store_host,
        "MASTER_PORT": str(commit.store_port),
        "WORLD_SIZE": str(len(members)),
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    if config.epochs is not None:
        told["BFT_EPOCHS"] = str(config.epochs)
    if config.samples is not None:
        told["BFT_SAMPLES"] = str(config.samples)
    return {**inherited, "PYTHONUNBUFFERED": "1", **told, **dict(config.environment)}
