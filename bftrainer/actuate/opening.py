"""Creates the generation machine of a trainer from its record.

Called by ``actuate.trainers`` when a trainer is submitted and when a daemon starts.
"""

from __future__ import annotations

import secrets

from bftrainer.actuate.generation import GenerationMachine
from bftrainer.actuate.outcomes import save_grace_s
from bftrainer.actuate.restarting import RestartMachine
from bftrainer.model.trainer import CheckpointContract, TrainerRecord
from bftrainer.policy.model import SitePolicy
from bftrainer.runtimes.base import Resize, resize_of


def machine_of(
    record: TrainerRecord, policy: SitePolicy, incarnation: int, now_s: float
) -> GenerationMachine:
    """Return a machine without workers."""
    spec = record.spec
    restarts = resize_of(spec.runtime) is Resize.RESTART
    machine = (RestartMachine if restarts else GenerationMachine)(
        record.trainer_id,
        n_min=spec.n_min,
        n_max=spec.n_max,
        join_window_s=policy.join_window_s,
        start_timeout_s=policy.start_timeout_s,
        last_generation=record.last_generation,
        incarnation=incarnation,
        new_token=lambda: secrets.token_hex(16),
        no_progress_s=0.0 if restarts else policy.no_progress_s,
    )
    if isinstance(machine, RestartMachine):
        machine.keep_grace((spec.contract or CheckpointContract()).grace_s)
    machine.failures.row = record.failing
    if record.cancelled_s is not None:  # an earlier daemon began to end it
        machine.wind_up(now_s, save_grace_s(spec.contract))
    return machine
