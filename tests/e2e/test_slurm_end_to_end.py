"""Idle nodes of a real Slurm train three real models while ordinary jobs come and go."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bftrainer.model.trainer import TrainerState
from slurm_plugins.testcluster.workload import JobRecord
from tests.e2e import records
from tests.e2e.scenario import NETWORKS, Outcome, run_scenario
from tests.e2e.train_digits import N_TRAIN

LEAST_COMPARED = 10  # updates

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]


# Rounds of jobs, nodes. A node less is half a dozen pilots less, of 4 s of processor time each.
STORIES = [pytest.param((1, 6), id="1"), pytest.param((4, 8), id="4", marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=STORIES)
def outcome(request: pytest.FixtureRequest) -> Iterator[Outcome]:
    """Play the story once for all checks."""
    base = Path(tempfile.mkdtemp(prefix="bft-e2e-"))
    base.chmod(0o755)  # ordinary users' jobs must reach the cluster's directory
    yield run_scenario(base, *request.param)
    shutil.rmtree(base)  # kept when the story fails: its logs say why


def test_all_trainers_finish(outcome: Outcome) -> None:
    states = {name: (t.state, t.reason) for name, t in outcome.trainers.items()}
    assert {s for s, _ in states.values()} == {TrainerState.FINISHED}, states
    assert set(states) == set(NETWORKS)


def test_there_was_enough_to_and_fro(outcome: Outcome) -> None:
    # A rescale is a change of size; parked is size 0. First starts do not count.
    changes = [r for r in outcome.rescales if r["what"]["size"] != r["what"]["size_before"]]
    assert len(changes) - len(NETWORKS) + len(outcome.parked) >= 7 * outcome.rounds
    assert len(outcome.gave_back_for_jobs) >= outcome.rounds
    assert outcome.killed_worker in outcome.killed_workers
    assert outcome.incarnations == 2


def test_each_trainer_was_parked_and_resumed(outcome: Outcome) -> None:
    parked = {p["trainer_id"] for p in outcome.parked}
    resumed = {r["trainer_id"] for r in outcome.rescales if r["what"]["resumed_from"]}
    ids = {t.trainer_id for t in outcome.trainers.values()}
    assert parked == ids
    assert resumed == ids


@pytest.mark.parametrize("network", NETWORKS)
def test_each_sample_is_in_exactly_one_committed_update_per_epoch(
    outcome: Outcome, network: str
) -> None:
    epochs = records.committed_samples(records.read_records(outcome.directories[network]))
    assert sorted(epochs) == list(range(outcome.epochs))
    for epoch, counts in epochs.items():
        wrong = {i: counts[i] for i in range(N_TRAIN) if counts[i] != 1}
        assert not wrong, f"epoch {epoch}: {dict(list(wrong.items())[:5])}"


def test_parameters_are_equal_on_all_members(outcome: Outcome) -> None:
    compared = 0
    for directory in outcome.directories.values():
        states = records.state_hashes(records.read_records(directory))
        assert states, directory
        differing = {at: h for at, h in states.items() if len(set(h)) > 1}
        assert not differing, (directory, differing)
        compared += sum(1 for h in states.values() if len(h) > 1)
    # How many generations have several members is for the decision. The trainer that lost a
    # worker had two, and more than ten updates: what is compared must not be luck.
    print(f"updates of several members: {compared}")  # noqa: T201
    assert compared >= LEAST_COMPARED, compared


@pytest.mark.parametrize("network", NETWORKS)
def test_accuracy_is_that_of_a_fixed_size_run(outcome: Outcome, network: str) -> None:
    assert outcome.accuracy[network] >= 0.95
    if network in outcome.fixed_accuracy:
        assert abs(outcome.accuracy[network] - outcome.fixed_accuracy[network]) <= 0.01


def test_ordinary_jobs_do_not_notice(outcome: Outcome) -> None:
    # Both clusters slow down on a busy machine; scripts/bench_gpus.py tells seconds. Slurm
    # preempts pilots, too: these sums are the same with a stopped daemon. That it gives nodes back
    # before is counted above (``gave_back_for_jobs``).
    with_us, without_us = _waits_s(outcome.with_us), _waits_s(outcome.without_us)
    print(f"waits with us {sum(with_us):.1f} s, without {sum(without_us):.1f} s")  # noqa: T201
    assert sum(with_us) <= 2 * sum(without_us), list(zip(with_us, without_us, strict=True))


def _waits_s(jobs: Sequence[JobRecord]) -> list[float]:
    waits = [job.wait_s for job in jobs]
    assert None not in waits, jobs
    return [wait for wait in waits if wait is not None]


def test_every_decision_comes_out_the_same_when_taken_again(outcome: Outcome) -> None:
    differing = [again for again in outcome.decisions if not again.is_equal]
    assert not differing, differing[:3]
    assert len(outcome.decisions) >= 7 * outcome.rounds
