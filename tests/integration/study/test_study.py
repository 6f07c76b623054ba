"""Studies on a local pool, as users run them: to the end, killed, paused, failing, evolving."""

from __future__ import annotations

import csv
import io
import json
import shlex
import signal
from collections.abc import Callable
from typing import Any

import pytest

from bftrainer.model.views import TrainerView
from tests.integration.study_fixtures import (
    BOTH,
    DAEMON,
    HALVING,
    HALVING_EPOCHS,
    LOOP,
    POLICY,
    TRAINS,
    StudyUser,
    Victim,
    end,
    outcome,
)
from tests.support.site import Site, opened_site
from tests.support.waiting import wait_for

site = opened_site(n_nodes=3, policy=POLICY)


@pytest.fixture(scope="module")
def halved(site: Site) -> StudyUser:
    """Somebody whose study ``half`` is over."""
    user = StudyUser(site, site.base / "halved")
    user.write("half", **HALVING)
    done = user.does("run", "half.yaml", "train.py")
    assert done.is_ok, done.stderr
    assert "over: trial" in done.stdout
    return user


def _trained(epochs: int) -> Callable[[StudyUser], bool]:
    return lambda user: user.trained().total() >= epochs


def test_halving_keeps_the_best_and_a_small_disk(halved: StudyUser) -> None:
    summary = halved.summary("half")
    trials = summary["trials"]
    assert summary["state"] == "over"
    assert sorted(t["budget"] for t in trials) == [1, 1, 1, 2, 2, 4]
    assert halved.trained().total() == HALVING_EPOCHS
    for rung in (1, 2):
        at = {t["number"]: t["values"][str(rung)] for t in trials if t["budget"] >= rung}
        up = {t["number"] for t in trials if t["budget"] > rung}
        assert up == set(sorted(at, key=lambda n: at[n])[: len(at) // 2])
    best = trials[summary["best"]]
    assert (best["stage"], best["units"]) == ("complete", 4)
    kept = {path.parent.name for path in halved.home.glob("half.study/trials/*/*.bft")}
    assert kept == {f"{best['number']:04d}"}, "checkpoints of others are gone"


def test_verbs_show_what_came_out(halved: StudyUser) -> None:
    summary = halved.summary("half")
    best = summary["trials"][summary["best"]]
    said = halved.says("status", "half")
    answer = f"The best of half is trial {best['number']}: value {best['value']:.6g} after 4 epochs"
    assert answer in " ".join(said.split())
    found = json.loads(halved.says("best", "half.study", "--json"))
    assert found["parameters"] == best["parameters"]
    rows = list(csv.DictReader(io.StringIO(halved.says("export", "half.yaml"))))
    assert [float(row["lr"]) for row in rows] == [t["parameters"]["lr"] for t in summary["trials"]]
    words = shlex.split(halved.says("best", "half", "--script"))
    assert words[:2] == ["bftrainer", "submit"]
    assert words[words.index("--epochs") + 1] == "4"
    assert f"BFT_PARAMETERS={json.dumps(best['parameters'])}" in words


@pytest.mark.long
def test_optuna_reads_the_same(halved: StudyUser) -> None:
    optuna = pytest.importorskip("optuna")
    backend = optuna.storages.journal.JournalFileBackend(str(halved.home / "half.study/optuna.log"))
    summary = halved.summary("half")
    study = optuna.load_study(
        study_name=summary["study"], storage=optuna.storages.JournalStorage(backend)
    )
    assert study.best_trial.number == summary["best"]
    assert [t.params for t in study.trials] == [t["parameters"] for t in summary["trials"]]
    assert [t.state.name for t in study.trials].count("PRUNED") == 5


@pytest.mark.long
@pytest.mark.timeout(240)
def test_killed_again_and_again_it_ends_as_without(site: Site, halved: StudyUser) -> None:
    user = StudyUser(site, site.base / "killed")
    user.write("half", **HALVING)
    kills = [
        (_trained(1), LOOP), (_trained(4), DAEMON), (_trained(7), BOTH), (_trained(10), LOOP)
    ]  # fmt: skip
    Victim(user, "half").run(kills)
    assert outcome(user.summary("half")) == outcome(halved.summary("half"))
    assert user.trained() == halved.trained(), "nothing is trained twice"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_paused_resumed_enlarged_and_stopped(site: Site) -> None:
    user = StudyUser(site, site.base / "paused")
    user.write("long", rule={"name": "none", "trials": 1, "most": 100_000}, parallel=4)
    loop = user.start("long", "long.yaml", "train.py")
    try:
        wait_for(lambda: len({number for number, _ in user.trained()}) == 1)
        twice = user.does("run", "long.study")
        assert (twice.returncode, "error BFT-1631: " in twice.stderr) == (75, True)
        assert "obeys" in user.says("pause", "long")
        wait_for(lambda: all(one.record.held_s for one in _trainers(site, "long")))
        wait_for(lambda: sum(len(one.observed_nodes) for one in _trainers(site, "long")) == 0)
        assert user.says("add", "long", "1") == "long has 2 trials now\n"
        assert len(_trainers(site, "long")) == 1, "no new ones in a pause"
        assert not json.loads(user.says("resume", "--json", "long"))["is_paused"]
        wait_for(lambda: len({number for number, _ in user.trained()}) == 2)
        end(loop)
        wanted = json.loads(user.says("stop", "--json", "long"))  # without a loop, too
        assert (wanted["is_stopped"], wanted["is_running"]) == (True, False)
        assert {one.record.state for one in _trainers(site, "long")} == {"cancelled"}
    finally:
        end(loop)
    summary = user.summary("long")
    assert (summary["state"], summary["over"]) == ("stopped", 2)
    kept = {path.parent.name for path in user.home.glob("long.study/trials/*/*.bft")}
    assert kept <= {f"{summary['best']:04d}"}, "checkpoints of others are gone"
    assert set(user.trained().values()) == {1}, "it went on where it was"
    assert "error BFT-1637" in user.does("add", "long", "1").stderr


def _trainers(site: Site, study: str) -> list[TrainerView]:
    return [one for one in site.client.trainers() if one.record.spec.name.startswith(f"{study}-")]


FAILS = TRAINS.replace("run = elastic", 'if number == "1":\n    raise SystemExit(3)\nrun = elastic')


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("failed", "numbers"), [pytest.param("worst", 3, marks=pytest.mark.long), ("ignore", 4)]
)
def test_a_trial_that_fails_is_tried_again_then_counted_or_ignored(
    site: Site, failed: str, numbers: int
) -> None:
    user = StudyUser(site, site.base / failed, FAILS)
    rule = {"name": "sha", "trials": 3, "least": 1, "most": 3, "eta": 3}
    user.write("fails", rule=rule, failed=failed, retry=1)
    done = user.does("run", "fails.yaml", "train.py")
    assert done.is_ok, done.stderr
    trials: list[dict[str, Any]] = user.summary("fails")["trials"]
    assert (trials[1]["stage"], trials[1]["attempt"]) == ("failed", 1)
    assert "trial 1 is tried again" in done.stdout
    assert len(trials) == numbers
    assert [t["stage"] for t in trials].count("complete") == 1


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_population_takes_over_the_best_states(site: Site) -> None:
    user = StudyUser(site, site.base / "evolves")
    user.write("pbt", rule={"name": "pbt", "population": 4, "interval": 1, "most": 3}, parallel=1)
    done = user.does("run", "pbt.yaml", "train.py")
    assert done.is_ok, done.stderr
    trials = user.summary("pbt")["trials"]
    heirs = [t for t in trials if t["parent"] is not None]
    assert heirs
    trained = user.trained()
    for heir in heirs:
        ratio = heir["parameters"]["lr"] / trials[heir["parent"]]["parameters"]["lr"]
        is_at_bound = heir["parameters"]["lr"] == 0.3
        assert is_at_bound or ratio in (pytest.approx(0.8), pytest.approx(1.2))
        assert (heir["number"], 0) not in trained, "its first epoch is its parent's"
        epochs = [epoch + 1 for number, epoch in trained if number == heir["number"]]
        assert [int(units) for units in heir["values"]] == sorted(epochs), "and so is its value"
    assert set(trained.values()) == {1}


@pytest.mark.long
def test_interrupted_it_leaves_its_trials_and_detached_it_goes_on(site: Site) -> None:
    user = StudyUser(site, site.base / "left")
    user.write("left", rule={"name": "none", "trials": 1, "most": 150}, parallel=1)
    loop = user.start("left", "left.yaml", "train.py")
    try:
        wait_for(lambda: user.trained().total() >= 1)
        loop.send_signal(signal.SIGINT)
        status, printed = loop.wait(30), (user.home / "left.out").read_text()
        assert status == 130, printed
        assert "Go on with: bftrainer study run" in printed
        assert [one.record.state.is_final for one in _trainers(site, "left")] == [False]
        assert user.summary("left")["state"] == "left"
        done = user.does("run", "--detach", "left")
        assert done.is_ok, done.stderr
        wait_for(lambda: user.summary("left")["state"] == "over")
    finally:
        end(loop)
    assert user.trained().total() == 150


DIVERGES = TRAINS.replace(
    "mse_loss(model(a), b).backward()",
    'mse_loss(model(a), b).mul(float("nan") if number == "1" else 1.0).backward()',
).replace("run.report(value)", "run.report(value if value == value else 9.0)")


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_trial_whose_loss_is_nan_ends_at_once(site: Site) -> None:
    user = StudyUser(site, site.base / "diverges", DIVERGES)
    user.write("diverges", rule={"name": "none", "trials": 3, "most": 3}, retry=1)
    done = user.does("run", "diverges.yaml", "train.py")
    assert done.is_ok, done.stderr
    trials: list[dict[str, Any]] = user.summary("diverges")["trials"]
    assert [t["stage"] for t in trials] == ["complete", "failed", "complete"]
    assert trials[1]["attempt"] == 0, "another try would end in the same way"
    assert "BFT-1435: The loss was NaN or infinite in 3 updates in a row" in trials[1]["reason"]
    assert trials[1]["units"] < 3
