"""``cancel``, ``hold`` and ``release`` of trainers by user, name and state."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace

import click
import pytest

from bftrainer.api.service import user_name
from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode
from bftrainer.model.trainer import TrainerState
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import MemoryService

__all__ = ["home", "output", "service"]


@pytest.fixture
def states(service: MemoryService, output: Output) -> Callable[[], dict[str, str]]:
    """Five trainers of ours and one of another user: t1 to t6; their states are returned."""
    for name in ("digits", "digits", "wide", "wide", "long", "foreign"):
        assert main(["submit", "-J", name, "--checkpoint-dir", f"c{len(service.records)}",
                     "train.py"]) == ExitCode.OK  # fmt: skip
    service.set_state("t2", TrainerState.RUNNING, "")
    service.set_state("t5", TrainerState.FINISHED, "")
    foreign = service.records["t6"]
    service.records["t6"] = replace(foreign, spec=replace(foreign.spec, user="nobody"))
    output.readouterr()
    return lambda: {i: str(record.state) for i, record in service.records.items()}


def cancelled(states: dict[str, str]) -> list[str]:
    return [trainer_id for trainer_id, state in states.items() if state == "cancelled"]


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("-n digits", ["t1", "t2"]),
        ("--name digits,wide --state PD", ["t1", "t3", "t4"]),
        ("-t running", ["t2"]),
        ("--me", ["t1", "t2", "t3", "t4"]),
        ("t1 t3 -n wide", ["t3"]),
        ("-n long", []),
    ],
)
def test_trainers_are_chosen_as_by_scancel(
    words: str, ids: list[str], states: Callable[[], dict[str, str]], output: Output
) -> None:
    assert main(["cancel", *words.split(), "--yes"]) == ExitCode.OK
    assert cancelled(states()) == ids
    printed = output.readouterr()
    assert len(printed.out.splitlines()) == len(ids)
    assert ("No trainer that goes on is meant." in printed.err) == (not ids)


def test_nothing_happens_before_several_are_agreed_to(
    states: Callable[[], dict[str, str]], output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, own = states(), user_name(0)
    assert main(["cancel", "-u", own]) == ExitCode.USAGE  # nobody can be asked
    assert "4 trainers are meant, and nobody can be asked: add --yes." in output.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    questions: list[str] = []

    def answer(question: str, **_: object) -> bool:
        questions.append(question)
        return len(questions) > 1

    monkeypatch.setattr(click, "confirm", answer)
    assert main(["cancel", "-u", own]) == ExitCode.OK
    assert states() == before
    assert "t1 digits of" in output.readouterr().err
    assert main(["hold", "--name", "wide"]) == ExitCode.OK
    assert questions == ["Cancel 4 trainers?", "Hold 2 trainers?"]
    output.readouterr()
    assert main(["release", "-t", "held", "--json", "-y"]) == ExitCode.OK
    views = json.loads(output.readouterr().out)["trainers"]
    assert [view["record"]["trainer_id"] for view in views] == ["t3", "t4"]
    assert main(["cancel", "-t", "R"]) == ExitCode.OK  # one is not asked about
    assert cancelled(states()) == ["t2"]


def test_another_users_trainers_stay(states: Callable[[], dict[str, str]], output: Output) -> None:
    assert main(["cancel", "--user", "nobody"]) == ExitCode.NOT_PERMITTED
    assert "BFT-1005" in output.readouterr().err
    assert cancelled(states()) == []
