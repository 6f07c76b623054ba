"""Makes one spec for each index of ``submit --array``. Pure but for the random id."""

from __future__ import annotations

import secrets
from dataclasses import replace

from bftrainer.cli.when_options import ArrayOption
from bftrainer.model.trainer import TrainerSpec

INDEX = "BFT_ARRAY_INDEX"  # in the environment of the workers


def specs_of(
    spec: TrainerSpec, array: ArrayOption | None, *, has_own_dir: bool
) -> tuple[TrainerSpec, ...]:
    """Return the trainers to submit: one, or one for each index.

    Args:
        spec: as one trainer.
        array: None: it is one.
        has_own_dir: ``--checkpoint-dir`` was given: each has a directory in it. By default the
            directory is named after the trainer.
    """
    if array is None:
        return (spec,)
    array_id = secrets.token_hex(8)
    between = "/" if has_own_dir else "_"
    return tuple(
        replace(
            spec,
            name=f"{spec.name}_{index}",
            checkpoint_dir=f"{spec.checkpoint_dir}{between}{index}",
            environment=(
                *(pair for pair in spec.environment if pair[0] != INDEX),
                (INDEX, str(index)),
            ),
            array_id=array_id,
            array_limit=array.limit,
        )
        for index in array.indices
    )
