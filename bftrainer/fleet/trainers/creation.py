"""Creates the daemon's object of a trainer, with its generation machine, from its record.

Called by ``trainers`` when a trainer is submitted and when a daemon starts.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bftrainer.decide.throughput.curves import Observation
from bftrainer.fleet.generations.breakage import Apart
from bftrainer.fleet.generations.failures import FailureCounts, Stall
from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.rescale_log import KIND, RescaleLog
from bftrainer.fleet.generations.restart import KILL_MARGIN_S, RestartMachine
from bftrainer.fleet.generations.state import (
    Crew,
    Identity,
    SerialNumbers,
    SizeRange,
    WorkerPatience,
)
from bftrainer.fleet.generations.stimuli import LimitsSet, SizesSet, WindUp
from bftrainer.fleet.runtimes.base import Resize, resize_of
from bftrainer.fleet.trainers.log_files import FailedTries, log_directory
from bftrainer.fleet.trainers.record_updates import save_grace_s
from bftrainer.ground.protocol import Report
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import CheckpointContract, TrainerRecord, TrainerSpec
from bftrainer.site.policy.model import SitePolicy

# Nodes that cannot reach each other are left out after it at the earliest: by then other members
# have reported, too, and it is known which of the two nodes nobody reaches.
SETTLE_S = 0.5
FOUND_S = 5.0  # an agent has looked for so long when it reports a node that it cannot reach
RESTART_PATIENCE_S = 30.0  # connections outlive a short cut, and a restart costs more


class LastWord(NamedTuple):
    """A message to a worker."""

    connection: int  # number of its agent's connection, which it was sent to
    body: Mapping[str, object]


@dataclass(slots=True, kw_only=True)
class Trainer:
    """A trainer that is not final (or ended so recently that workers remain)."""

    record: TrainerRecord
    log: RescaleLog
    watch: Observation | None = None  # of the current generation's throughput
    tries: FailedTries = field(default_factory=FailedTries)
    is_saved: bool = False  # when it was last parked
    unwritten: Report | None = None  # its newest report, if the journal lacks it
    last_words: dict[str, LastWord] = field(default_factory=dict)  # the machine's to each worker
    wrote_reports_s: float = -math.inf  # when reports were last written; the machine's clock
    # As they were when it came to rest, and how many stimuli its machine had got by then.
    _rested_record: TrainerRecord | None = None
    _rested_log: RescaleLog | None = None
    _rested_stimuli: int = 0

    @property
    def is_resting(self) -> bool:
        """Return whether nothing has happened since time alone could change nothing."""
        is_same = self._rested_record is self.record and self._rested_log is self.log
        return is_same and self._rested_stimuli == self.log.n_stimuli

    def rest_if_idle(self) -> None:
        """Come to rest if time alone changes nothing: hundreds may wait, and each tick looks."""
        record, machine = self.record, self.machine
        is_over = record.state.is_final or machine.course.is_ended
        # Reports that wait, a requeue that waits for workers' ends, and time limits need ticks.
        may_rest = machine.is_idle and not is_over and self.unwritten is None
        if may_rest and record.requeued_s is None and record.time_ends_s is None:
            self._rested_record, self._rested_log = record, self.log
            self._rested_stimuli = self.log.n_stimuli

    @property
    def machine(self) -> GenerationMachine:
        """The state machine of its membership; only ``log`` may change it."""
        return self.log.machine


def limits_of(policy: SitePolicy, spec: TrainerSpec) -> LimitsSet:
    """Return the policy's times for a trainer; programs that restart need not tell of steps."""
    no_progress_s, patience_s = policy.no_progress_s, SETTLE_S
    if resize_of(spec.runtime) is Resize.RESTART:
        no_progress_s, patience_s = 0.0, RESTART_PATIENCE_S
    return LimitsSet(
        join_window_s=policy.join_window_s,
        start_timeout_s=policy.start_timeout_s,
        no_progress_s=no_progress_s,
        cut_patience_s=max(patience_s, policy.agent_timeout_s - FOUND_S),
    )


def sizes_of(spec: TrainerSpec) -> SizesSet:
    """Return how many nodes a trainer may have."""
    return SizesSet(n_min=spec.n_min, n_max=spec.n_max, sizes=spec.sizes)


def opened_of(
    record: TrainerRecord,
    policy: SitePolicy,
    incarnation: int,
    now_s: float,
    journal: Journal,
    *,
    started_workers: int = 0,
) -> Trainer:
    """Return a trainer without workers; ``started_workers`` have had a number already."""
    spec = record.spec
    kind = GenerationMachine
    limits = limits_of(policy, spec)
    patience = WorkerPatience(
        join_window_s=limits.join_window_s, start_timeout_s=limits.start_timeout_s
    )
    if resize_of(spec.runtime) is Resize.RESTART:
        kind = RestartMachine
        patience.leave_patience_s = (spec.contract or CheckpointContract()).grace_s + KILL_MARGIN_S
    machine = kind(
        identity=Identity(
            trainer_id=record.trainer_id,
            incarnation=incarnation,
            commit_key=secrets.token_hex(16),
            log_directory=str(log_directory(spec)),
        ),
        size_range=SizeRange(n_min=spec.n_min, n_max=spec.n_max, sizes=spec.sizes),
        patience=patience,
        numbers=SerialNumbers(generation=record.last_generation, started_workers=started_workers),
        crew=Crew(batch=record.progress.batch),
        failures=FailureCounts(row=record.failing),
        stall=Stall(lease_s=limits.no_progress_s),
        apart=Apart(patience_s=limits.cut_patience_s),
    )
    if record.cancelled_s is not None:  # an earlier daemon began to end it
        machine.handle(WindUp(grace_s=save_grace_s(spec.contract)), now_s)
    log = RescaleLog(machine, lambda done: journal.note_large(KIND, done))
    return Trainer(record=record, log=log)
