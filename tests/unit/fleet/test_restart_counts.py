"""How often a trainer was started anew: its record counts, and its script can read it."""

from __future__ import annotations

import json
from dataclasses import replace

from bftrainer.fleet.generations.members import Rescaled
from bftrainer.fleet.runtimes.base import RESTART_COUNTS, SLURM_RESTARTS, worker_config
from bftrainer.fleet.trainers.record_updates import rescaled
from bftrainer.model.canonical import decode, encode
from bftrainer.model.trainer import (
    TrainerRecord,
    TrainerSpec,
    TrainerState,
    as_decided,
)

SPEC = TrainerSpec(name="n", user="u", script="/s")
QUEUED = TrainerRecord(trainer_id="t1", spec=SPEC, state=TrainerState.QUEUED, submitted_s=1.0)


def formed(record: TrainerRecord, size: int, size_before: int) -> TrainerRecord:
    done = Rescaled(
        generation=record.last_generation + 1, attempt=1, size_before=size_before, size=size,
        reason="", pause_s=0.0, formation_s=0.0, step=5, epoch=0, samples=0, nodes=("n1",),
        resumed_from="",
    )  # fmt: skip
    return rescaled(record, done, record.costs, 100.0)


def counts(record: TrainerRecord) -> dict[str, str]:
    config = worker_config(
        record, worker_id="w", node="n", address="a", incarnation=1, log_path="/l"
    )
    names = (*RESTART_COUNTS, SLURM_RESTARTS)
    return {name: value for name, value in config.environment if name in names}


def parked(record: TrainerRecord) -> TrainerRecord:
    return replace(record, state=TrainerState.PARKED, progress=replace(record.progress, size=0))


def test_starts_after_the_first_count_and_sizes_do_not() -> None:
    first = formed(QUEUED, 1, 0)
    grown = formed(first, 4, 1)
    assert (first.restarts, grown.restarts) == (0, 0)
    second = formed(parked(grown), 2, 0)
    assert second.restarts == 1
    assert formed(parked(second), 2, 0).restarts == 2


def test_a_script_reads_the_number_of_the_life_that_it_is_in() -> None:
    running = formed(QUEUED, 2, 0)
    none = dict.fromkeys(RESTART_COUNTS, "0")
    assert counts(QUEUED) == none
    assert counts(running) == none  # a worker that joins
    once = {**dict.fromkeys(RESTART_COUNTS, "1"), SLURM_RESTARTS: "1"}
    assert counts(parked(running)) == once  # one that starts it again
    assert counts(formed(parked(running), 1, 0)) == once


def test_the_number_is_journalled_and_read_without_it() -> None:
    assert "restarts" not in json.loads(encode(QUEUED))
    again = replace(QUEUED, restarts=3)
    assert decode(encode(again), TrainerRecord) == again
    assert encode(as_decided(again)) == encode(as_decided(QUEUED))


def test_the_users_own_value_wins() -> None:
    spec = replace(SPEC, environment=((RESTART_COUNTS[0], "mine"),))
    assert counts(replace(QUEUED, spec=spec))[RESTART_COUNTS[0]] == "mine"
