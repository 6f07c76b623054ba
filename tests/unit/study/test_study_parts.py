"""The pure parts of a study: what is known, arguments, perturbed parameters, outcome, storage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bftrainer.model.errors import BftError
from bftrainer.model.study import Report, TrialTag, TrialView
from bftrainer.model.trainer import TrainerSpec
from bftrainer.study.actions import check_places, filled, spec_of
from bftrainer.study.configurations import (
    CategoricalParameter,
    FloatParameter,
    IntParameter,
    perturbed,
)
from bftrainer.study.directory import (
    Events,
    Wishes,
    change_wishes,
    check_same,
    is_running,
    new_directory,
    only_loop,
    read_directory,
    read_events,
    read_wishes,
    write_directory,
)
from bftrainer.study.disk import drop_checkpoints, keep_newest
from bftrainer.study.document import StudyDocument, parse_study
from bftrainer.study.trial_table import KnownTrial, best_of, know, rungs_of
from bftrainer.study.trials import Start, StoredTrial, TrialStage

TEXT = """\
parameters:
  lr: {type: float, low: 0.001, high: 1.0, log: true}
  width: {type: int, low: 8, high: 64, step: 8}
  act: [relu, tanh]
sampler: random
seed: 5
rule: {name: asha, trials: 8, least: 1, most: 9, eta: 3}
"""
DOCUMENT = parse_study(TEXT, Path("own.yaml"))
PARAMETERS: Mapping[str, Any] = {"lr": 0.1, "width": 16, "act": "relu"}


def stored(number: int = 0, **more: Any) -> StoredTrial:
    given: dict[str, Any] = {"end": None, "parameters": PARAMETERS, "budget": 1, **more}
    return StoredTrial(number=number, **given)


def view(number: int = 0, attempt: int = 0, **more: Any) -> TrialView:
    given: dict[str, Any] = {
        "trainer_id": f"t{number}-{attempt}", "state": "running", "budget": 3, "is_held": False,
        "waits_at_rung": False, "nodes": 1, "samples": 0, "epoch": 0, "node_s": 2.0, "reports": (),
        "checkpoint_dir": "/c", **more,
    }  # fmt: skip
    tag = TrialTag(
        study="s", number=number, attempt=attempt, parameters=json.dumps(dict(PARAMETERS))
    )
    return TrialView(tag=tag, **given)


def known(one: StoredTrial, *views: TrialView, retry: int = 1) -> KnownTrial:
    (found,) = know([one], views, unit="epochs", retry=retry)
    return found


@pytest.mark.parametrize(
    ("one", "views", "stage"),
    [
        (stored(), [], TrialStage.ACTIVE),
        (stored(), [view()], TrialStage.ACTIVE),
        (stored(), [view(state="parked", waits_at_rung=True)], TrialStage.WAITING),
        (stored(), [view(state="parked")], TrialStage.ACTIVE),
        (stored(), [view(state="finished")], TrialStage.COMPLETE),
        (stored(), [view(state="cancelled")], TrialStage.STOPPED),
        (stored(), [view(state="failed")], TrialStage.ACTIVE),
        (stored(), [view(state="failed"), view(attempt=1, state="failed")], TrialStage.FAILED),
        (stored(), [view(state="failed"), view(attempt=1)], TrialStage.ACTIVE),
        (stored(end=TrialStage.COMPLETE), [], TrialStage.COMPLETE),
        (stored(end=TrialStage.STOPPED), [view()], TrialStage.STOPPED),
        (stored(end=TrialStage.FAILED), [view(state="finished")], TrialStage.FAILED),
    ],
)
def test_the_storage_knows_the_end_and_the_daemon_the_life(
    one: StoredTrial, views: list[TrialView], stage: TrialStage
) -> None:
    assert known(one, *views).stage is stage


def test_values_of_both_are_put_together_in_their_order() -> None:
    reports = (
        Report(value=0.5, epoch=2, reported_s=12.0),
        Report(value=0.3, epoch=4, reported_s=14.0),
    )
    one = known(stored(values={1: 0.9, 2: 0.6, 3: 0.4}), view(reports=reports))
    assert one.values == {1: 0.9, 2: 0.5, 3: 0.4, 4: 0.3}
    found = one.reported_s
    assert found == {1: 12.0, 2: 12.0, 3: 14.0, 4: 14.0}, "what was thinned out: as the next"
    assert one.unwritten() == {2: 0.5, 4: 0.3}
    assert (one.units, one.value, one.budget) == (4, 0.3, 3)
    assert [v.value for v in one.as_trial(-1.0).values] == [-0.9, -0.5, -0.4, -0.3]


def test_the_best_has_trained_furthest() -> None:
    def trial(number: int, stage: str, values: dict[int, float]) -> KnownTrial:
        ended = {"finished": TrialStage.COMPLETE, "failed": TrialStage.FAILED}.get(stage)
        return known(stored(number, end=ended, values=values), view(number, state=stage))

    far, near = trial(0, "running", {1: 0.9, 3: 0.5}), trial(1, "running", {1: 0.1})
    assert best_of([far, near], 1.0) is far
    done = trial(2, "finished", {3: 0.7})
    assert best_of([far, near, done], 1.0) is done
    better = trial(3, "finished", {3: 0.8})
    assert best_of([done, better], -1.0) is better
    assert best_of([known(stored())], 1.0) is None
    beyond, exact = trial(4, "finished", {5: 9.9}), trial(5, "finished", {3: 0.1})
    assert best_of([beyond, exact], 1.0) is exact, "the last step of a program is no advantage"
    steps, least = trial(6, "running", {5: 0.6}), trial(7, "running", {3: 0.4})
    assert best_of([far, steps, least], 1.0) is least, "nor is it at a rung"
    broken = trial(8, "failed", {3: 0.0})
    assert best_of([broken, near], 1.0) is near
    assert best_of([broken], 1.0) is broken
    assert [(r.budget, r.active, r.over) for r in rungs_of([far, done])] == [(3, 1, 1)]


def test_arguments_get_their_values_and_others_stay() -> None:
    args = ("--lr={lr}", "{width}", '{"a": 1}', "{other}")
    assert filled(args, PARAMETERS) == ("--lr=0.1", "16", '{"a": 1}', "{other}")
    check_places(args, list(PARAMETERS))
    with pytest.raises(BftError, match=r"BFT-1627.*\{width\}"):
        check_places(["{widht}"], list(PARAMETERS))


def test_perturbed_parameters_stay_in_bounds_and_are_the_same_again() -> None:
    for number in range(200):
        found = perturbed(PARAMETERS, DOCUMENT.parameters, seed=1, number=number)
        assert found == perturbed(PARAMETERS, DOCUMENT.parameters, seed=1, number=number)
        assert found["lr"] in (pytest.approx(0.08), pytest.approx(0.12))
        assert found["width"] in (8, 24)
        assert found["act"] in ("relu", "tanh")
    assert {
        perturbed(PARAMETERS, DOCUMENT.parameters, seed=1, number=n)["act"] for n in range(200)
    } == {"relu", "tanh"}
    edges: dict[str, Any] = {
        "low": FloatParameter(type="float", low=-1.0, high=1.0, step=0.25),
        "top": IntParameter(type="int", low=0, high=9, step=2),
        "one": CategoricalParameter(type="categorical", choices=(True,)),
    }
    for number in range(50):
        found = perturbed({"low": 1.0, "top": 8, "one": True}, edges, seed=0, number=number)
        assert found["low"] in (0.5, 1.0), "a share of the range, on its steps"
        assert found["top"] in (6, 8)


def study(path: Path, document: StudyDocument = DOCUMENT) -> Any:
    base = TrainerSpec(name="own", user="u", script="/s.py", args=("--lr={lr}",), n_max=4)
    return new_directory(path, document, base)


def test_a_trial_is_the_study_with_its_own_parameters(tmp_path: Path) -> None:
    made = study(tmp_path)
    spec = spec_of(made, stored(7), budget=3, most=9, attempt=1)
    assert (spec.name, spec.args, spec.epochs, spec.samples) == ("own-7", ("--lr=0.1",), 3, None)
    assert (spec.n_min, spec.n_max) == (1, 4)
    assert spec.checkpoint_dir == str(tmp_path / "trials" / "0007")
    assert spec.trial == TrialTag(
        study=made.study_id,
        number=7,
        attempt=1,
        most=9,
        parameters=json.dumps(dict(PARAMETERS)),
        maximizes=False,
    )
    planned = spec_of(made, stored(7), budget=3, most=9, nodes=2)
    assert (planned.n_min, planned.n_max) == (2, 2)


def test_a_directory_is_read_as_it_was_written_and_refuses_another_study(tmp_path: Path) -> None:
    made = study(tmp_path / "own.study")
    write_directory(made)
    again = read_directory(made.path)
    assert again == made
    check_same(again, made)
    other = made.document.model_copy(update={"seed": 6})
    with pytest.raises(BftError, match=r"BFT-1632.*another seed .5, now 6., script"):
        check_same(again, replace(made, document=other, base=replace(made.base, script="/t.py")))
    with pytest.raises(BftError, match="BFT-1633"):
        read_directory(tmp_path)
    (made.path / "study.json").write_text("{}")
    with pytest.raises(BftError, match="BFT-1636"):
        read_directory(made.path)


def test_one_loop_at_a_time(tmp_path: Path) -> None:
    assert not is_running(tmp_path)
    with only_loop(tmp_path):
        assert is_running(tmp_path)
        with pytest.raises(BftError, match=r"BFT-1631.*process \d+ on "), only_loop(tmp_path):
            pass
    assert not is_running(tmp_path)


def test_wishes_are_kept(tmp_path: Path) -> None:
    assert read_wishes(tmp_path) == Wishes()
    change_wishes(tmp_path, partial(replace, is_paused=True))
    change_wishes(tmp_path, lambda before: replace(before, more=before.more + 3))
    assert read_wishes(tmp_path) == Wishes(is_paused=True, more=3)
    assert change_wishes(tmp_path, partial(replace, is_paused=False)) == Wishes(more=3)
    (tmp_path / "wishes.json").write_text("no")
    with pytest.raises(BftError, match="BFT-1636"):
        read_wishes(tmp_path)


def test_events_are_lines_and_a_cut_one_is_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    events = Events(tmp_path / "events.jsonl", said.append)
    events.happened("started", "trial 0 starts", trial=0)
    events.happened("pool", nodes=3)
    with (tmp_path / "events.jsonl").open("a") as stream:
        stream.write('{"at_s": 1.0, "ev')
    assert said == ["trial 0 starts"]
    assert [(e["event"], e.get("trial")) for e in read_events(tmp_path / "events.jsonl")] == [
        ("started", 0),
        ("pool", None),
    ]
    assert read_events(tmp_path / "none") == []


def test_checkpoints_go_and_logs_stay(tmp_path: Path) -> None:
    for name in ("step-000000000001-generation-00000001.bft", "step-000000000002-g.bft", "x"):
        (tmp_path / name).touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "generation-1").mkdir()
    keep_newest(tmp_path)
    assert [path.name for path in tmp_path.glob("*.bft")] == ["step-000000000002-g.bft"]
    (tmp_path / ".step-3.bft.7.tmp").touch()
    (tmp_path / "mine.bft").touch()
    drop_checkpoints(tmp_path)
    left = {"logs", "x", "generation-1", "mine.bft"}
    assert {path.name for path in tmp_path.iterdir()} == left, "what is not ours stays"
    link = tmp_path / "link"
    (tmp_path / "logs" / "step-000000000001-g.bft").touch()
    link.symlink_to(tmp_path / "logs")
    drop_checkpoints(link)
    assert (tmp_path / "logs" / "step-000000000001-g.bft").exists(), "a link is not followed"
    drop_checkpoints(tmp_path / "none")


@pytest.mark.parametrize("sampler", ["random", "tpe", "qmc"])
def test_the_storage_gives_back_what_was_written(tmp_path: Path, sampler: str) -> None:
    pytest.importorskip("optuna")
    from bftrainer.study.storage import StudyStorage, repair

    path = tmp_path / "optuna.log"
    document = DOCUMENT.model_copy(update={"sampler": sampler, "direction": "maximize"})
    one = StudyStorage(path, "own", document)
    for number in range(3):
        parameters = one.draw(number)
        assert parameters.keys() == DOCUMENT.parameters.keys()
        one.create(Start(budget=3, bracket=1, parent=None), parameters)
    one.report(0, {1: 0.5, 2: 0.25})
    one.finish(0, TrialStage.COMPLETE, value=0.25, reason="", orders={1: 7.0, 2: 8.0}, node_s=4.0)
    one.finish(1, TrialStage.STOPPED, value=None, reason="It is slow.", orders={}, node_s=0.0)
    one.set_note("paused", value=True)
    Path(f"{path}.lock").symlink_to(path)  # of a killed writer
    with path.open("a") as stream:
        stream.write('{"op_code": 1')  # of a crash
    repair(path)
    again = StudyStorage(path, "own", document)
    found = again.trials()
    assert found == one.trials()
    assert [t.end for t in found] == [TrialStage.COMPLETE, TrialStage.STOPPED, None]
    assert (found[0].values, found[0].orders) == ({1: 0.5, 2: 0.25}, {1: 7.0, 2: 8.0})
    assert (found[0].budget, found[0].bracket, found[0].node_s) == (3, 1, 4.0)
    assert found[1].reason == "It is slow."
    assert again.note("paused") is True
    if sampler == "random":
        assert again.draw(2) == found[2].parameters, "drawn anew, a trial gets the same"
    (tmp_path / "bad.log").write_text("no\nno\n")
    with pytest.raises(BftError, match="BFT-1636"):
        StudyStorage(tmp_path / "bad.log", "own", document)
