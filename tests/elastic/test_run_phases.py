"""The phases of a worker's loop, and what a change that nobody foresaw does to a training."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer.elastic import GlobalBatch, Run
from bftrainer.elastic.loop import run_phases
from bftrainer.elastic.loop.run_phases import CHANGES, RunLife, RunPhase
from bftrainer.elastic.process import control as control_module
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

# Written by hand: is_looping, is_rehearsing, has_state, has_batch, is_counted.
ANSWERS = {
    "outside": (False, False, False, False, False),
    "joining": (True, False, False, False, False),
    "rehearsing": (True, True, False, True, False),
    "rehearsed": (True, True, False, False, False),
    "between batches": (True, False, True, False, True),
    "in a pass": (True, False, True, True, True),
    "after a pass": (True, False, True, False, False),
}
JOINER = ("joining", "rehearsing", "rehearsed", "rehearsing", "rehearsed", "joining")
MEMBER = ("between batches", "in a pass", "after a pass", "between batches", "in a pass")
WAYS = [
    (*JOINER, *MEMBER, "between batches"),
    ("joining", *MEMBER, "in a pass", "between batches"),  # nothing to rehearse; a pass is left
    ("joining", "rehearsing", "rehearsing", "between batches"),  # a rehearsal is left
    ("joining", "rehearsing", "rehearsed", "between batches"),
    ("joining", "between batches", "in a pass", "after a pass", "in a pass"),
]
FORBIDDEN = [("outside", "in a pass"), ("between batches", "rehearsing"), ("in a pass", "joining")]


def life_at(phase: str) -> RunLife:
    life = RunLife()
    life.phase = RunPhase(phase)
    return life


@pytest.mark.parametrize("way", WAYS)
def test_the_ways_through_a_loop_are_allowed(way: tuple[str, ...]) -> None:
    life = RunLife()
    for phase in way:
        life.becomes(RunPhase(phase))
    assert life.phase.value == way[-1]


def test_no_change_is_allowed_that_no_way_takes() -> None:
    changes = {change for way in WAYS for change in pairwise(("outside", *way))}
    table = {(before.value, phase.value) for before in CHANGES for phase in CHANGES[before]}
    assert table == changes


@pytest.mark.parametrize(("phase", "answers"), ANSWERS.items())
def test_a_phase_answers_what_the_flags_did(phase: str, answers: tuple[bool, ...]) -> None:
    life = life_at(phase)
    answered = (
        life.is_looping,
        life.is_rehearsing,
        life.has_state,
        life.has_batch,
        life.is_counted,
    )
    assert answered == answers


@pytest.mark.parametrize(("before", "phase"), FORBIDDEN)
def test_a_forbidden_change_is_loud_in_tests(before: str, phase: str) -> None:
    life = life_at(before)
    with pytest.raises(RuntimeError, match=f"the run was {before} and became {phase}"):
        life.becomes(RunPhase(phase))


def test_a_forbidden_change_is_made_and_said_once_where_users_train(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_phases, "_IS_STRICT", False)
    life = life_at("between batches")
    for _ in range(2):
        life.becomes(RunPhase.REHEARSING)
        life.becomes(RunPhase.BETWEEN)
    assert life.phase is RunPhase.BETWEEN
    assert capsys.readouterr().err == (
        "bftrainer: the run was between batches and became rehearsing, which its table of phases"
        " forbids. Training goes on; please report it.\n"
    )


def test_a_training_shows_its_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "_current", [])
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data: DataLoader[Any] = DataLoader(
        TensorDataset(torch.randn(4, 4), torch.randn(4, 1)), batch_size=4
    )
    run = Run(model, optimizer, data, epochs=1, batch=GlobalBatch(max_per_worker=2))
    phases = [run._life.phase]
    for _ in run.epochs():
        phases.append(run._life.phase)
        for x, y in run.batches():
            phases.append(run._life.phase)
            nn.functional.mse_loss(model(x), y).backward()
            run.step()
            phases.append(run._life.phase)
    passes = ["in a pass", "after a pass", "in a pass", "between batches"]
    assert [phase.value for phase in phases] == ["outside", "between batches", *passes]


def test_a_script_that_left_its_rehearsal_trains_when_a_commit_waits(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.start(SCRIPTS / "leaving_rehearsal.py")
        c.until((tmp_path / "left").exists, "the rehearsal is left")
        c.commit(ids, c.prepare(ids))
        c.finished(ids)
    assert json.loads((tmp_path / "committed.json").read_text()) == [True, True, True]
