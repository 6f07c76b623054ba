"""What samplers draw for the trials of a study, from what the storage holds."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("optuna")

from bftrainer.model.errors import BftError
from bftrainer.study.document import StudyDocument, parse_study
from bftrainer.study.storage import StudyStorage
from bftrainer.study.trials import Scalar, Start, TrialStage

BEST = 0.3


def document(sampler: str, seed: int = 0, direction: str = "minimize") -> StudyDocument:
    return parse_study(
        f"""\
name: own
sampler: {sampler}
seed: {seed}
direction: {direction}
parameters:
  x: {{type: float, low: 0.0, high: 1.0}}
  n: {{type: int, low: 1, high: 9}}
  kind: [a, b, c]
rule: {{name: asha, trials: 99, least: 1, most: 9}}
""",
        Path("own.yaml"),
    )


def loss(parameters: dict[str, Scalar]) -> float:
    return (float(parameters["x"]) - BEST) ** 2 + 0.1 * (parameters["kind"] != "b")


def drawn(
    path: Path, of: StudyDocument, number: int, *, ends: bool, every: int = 1_000
) -> list[dict[str, Scalar]]:
    """Draw trials, each of which reports before the next one is drawn, and perhaps ends.

    The storage is opened anew before every ``every``-th trial.
    """
    storage, found = StudyStorage(path, "own", of), []
    sign = -1.0 if of.direction == "maximize" else 1.0
    for index in range(number):
        if index % every == 0:
            storage = StudyStorage(path, "own", of)
        parameters = storage.draw(storage.next_number())
        made = storage.create(Start(budget=1), parameters)
        value = sign * loss(parameters)
        storage.report(made, {1: value})
        if ends:
            storage.finish(
                made, TrialStage.COMPLETE, value=value, reason="", orders={1: 1.0}, node_s=1.0
            )
        found.append(parameters)
    return found


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("ends", [True, False])
def test_tpe_learns_from_trials_that_ended_and_from_those_that_wait(
    tmp_path: Path, direction: str, *, ends: bool
) -> None:
    of = document("tpe", direction=direction)
    later = drawn(tmp_path / "tpe.log", of, 40, ends=ends)[20:]
    at_random = drawn(tmp_path / "random.log", document("random"), 40, ends=ends)[20:]
    assert fmean(map(loss, later)) < 0.5 * fmean(map(loss, at_random))


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc"])
def test_a_study_that_was_restarted_draws_the_same(tmp_path: Path, sampler: str) -> None:
    of = document(sampler)
    through = drawn(tmp_path / "a.log", of, 25, ends=True)
    assert drawn(tmp_path / "b.log", of, 25, ends=True, every=4) == through
    assert drawn(tmp_path / "c.log", document(sampler, seed=1), 25, ends=True) != through
    assert len({tuple(one.items()) for one in through}) == 25, "no configuration twice"


def test_points_of_qmc_are_spread_before_any_trial_ends(tmp_path: Path) -> None:
    storage = StudyStorage(tmp_path / "qmc.log", "own", document("qmc"))
    points = [storage.draw(number) for number in range(16)]
    assert storage.draw(7) == points[7]
    assert sorted(int(16 * float(one["x"])) for one in points) == list(range(16))
    assert {one["kind"] for one in points} == {"a", "b", "c"}


def test_drawing_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tpe.log"
    drawn(path, document("tpe"), 15, ends=True)
    before = path.read_bytes()
    storage = StudyStorage(path, "own", document("tpe"))
    storage.draw(15)
    assert path.read_bytes() == before


def test_trials_that_scripts_end_or_enqueue_do_no_harm(tmp_path: Path) -> None:
    import optuna

    path = tmp_path / "optuna.log"
    storage = StudyStorage(path, "own", document("tpe"))
    number = storage.create(Start(budget=1), storage.draw(0))
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    theirs = optuna.load_study(study_name="own", storage=optuna.storages.JournalStorage(backend))
    theirs.enqueue_trial({"x": 0.5})
    assert storage.draw(2)["x"] != 0.5, "it is theirs"
    theirs.tell(number, 0.5)
    storage.report(number, {1: 0.5})
    storage.finish(number, TrialStage.STOPPED, value=None, reason="", orders={}, node_s=0.0)
    assert [one.end for one in storage.trials()] == [TrialStage.COMPLETE]
    optuna.delete_study(study_name="own", storage=theirs._storage)
    with pytest.raises(BftError, match="BFT-1636"):
        storage.trials()


def test_a_value_that_is_replaced_is_seen_by_the_process_that_runs(tmp_path: Path) -> None:
    of, path = document("tpe"), tmp_path / "own.log"
    drawn(path, of, 12, ends=False)
    storage = StudyStorage(path, "own", of)
    storage.draw(12)
    for number in range(12):
        storage.report(number, {1: float(12 - number)})
    assert storage.draw(13) == StudyStorage(path, "own", of).draw(13)


def test_results_that_a_script_adds_are_not_ours(tmp_path: Path) -> None:
    import optuna

    of, path = document("tpe"), tmp_path / "own.log"
    drawn(path, of, 12, ends=True)
    storage = StudyStorage(path, "own", of)
    before = storage.draw(20)
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    theirs = optuna.load_study(study_name="own", storage=optuna.storages.JournalStorage(backend))
    kinds: dict[str, optuna.distributions.BaseDistribution] = {
        "kind": optuna.distributions.CategoricalDistribution(("a", "z"))
    }
    theirs.add_trial(
        optuna.trial.create_trial(value=0.0, params={"kind": "z"}, distributions=kinds)
    )
    assert StudyStorage(path, "own", of).draw(20) == before
