"""Creates the generation machine of a trainer from its record.

Called by ``actuate.trainers`` when a trainer is submitted and when a daemon starts.
"""

from __future__ import annotations

import secrets

from bftrainer.actuate.generation import GenerationMachine
from bftrainer.actuate.log_files import log_directory
from bftrainer.actuate.outcomes import save_grace_s
from bftrainer.actuate.restarting import KILL_MARGIN_S, RestartMachine
from bftrainer.actuate.stimuli import WindUp
from bftrainer.model.trainer import CheckpointContract, TrainerRecord
from bftrainer.policy.model import SitePolicy
from bftrainer.runtimes.base import Resize, resize_of


def machine_of(
    record: TrainerRecord, policy: SitePolicy, incarnation: int, now_s: float
) -> GenerationMachine:
    """Return a machine without workers."""
    spec = record.spec
    restarts = resize_of(spec.runtime) is Resize.RESTART
    kind = RestartMachine if restarts else GenerationMachine
    machine = kind(
        trainer_id=record.trainer_id,
        n_min=spec.n_min,
        n_max=spec.n_max,
        join_window_s=policy.join_window_s,
        start_timeout_s=policy.start_timeout_s,
        generation=record.last_generation,
        incarnation=incarnation,
        commit_key=secrets.token_hex(16),
        log_directory=str(log_directory(spec)),
    )
    if restarts:
        machine.leave_patience_s = (spec.contract or CheckpointContract()).grace_s + KILL_MARGIN_S
    else:
        machine.stall.lease_s = policy.no_progress_s
    machine.failures.row = record.failing
    if record.cancelled_s is not None:  # an earlier daemon began to end it
        machine.handle(WindUp(grace_s=save_grace_s(spec.contract)), now_s)
    return machine
