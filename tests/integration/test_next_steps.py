"""What is told to be typed next: where something has begun, and where a verb was the wrong one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.cli.daemon import print_next_of_daemon
from bftrainer.cli.main import main
from bftrainer.model.trainer import TrainerState
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import MemoryService

__all__ = ["home", "output", "service"]


def _next(output: Output) -> list[str]:
    lines = output.readouterr().err.splitlines()
    return [line.removeprefix("next: ") for line in lines if line.startswith("next: ")]


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"held_s": 1.0}, "bftrainer release t1 (it is held)."),
        ({"state": TrainerState.FAILED}, "bftrainer requeue t1 (it is failed)."),
        ({"state": TrainerState.CANCELLED}, "bftrainer requeue t1 (it is cancelled)."),
        (
            {"state": TrainerState.FINISHED},
            "t1 is finished: submit its script again with more --epochs.",
        ),
        ({"state": TrainerState.FAILED, "held_s": 1.0}, "bftrainer requeue t1 (it is failed)."),
        (
            {"state": TrainerState.RUNNING, "cancelled_s": 1.0},
            "bftrainer requeue t1 when it has ended (it is being cancelled).",
        ),
        ({"state": TrainerState.RUNNING}, "bftrainer status t1 (it trains already)."),
    ],
)
def test_resume_of_a_trainer_names_the_verb_that_fits_its_state(
    changes: dict[str, object], step: str, service: MemoryService, output: Output
) -> None:
    assert main(["submit", "-J", "mine", "train.py"]) == 0
    service.records["t1"] = replace(service.records["t1"], **changes)  # type: ignore[arg-type]
    for name in ("t1", "mine"):
        output.readouterr()
        assert main(["resume", name]) == 2
        assert _next(output) == [step]


def test_a_requeue_says_what_comes_next_of_the_new_trainer(
    service: MemoryService, output: Output
) -> None:
    assert main(["submit", "train.py"]) == 0
    service.records["t1"] = replace(service.records["t1"], state=TrainerState.FAILED)
    output.readouterr()
    assert main(["requeue", "t1"]) == 0
    commands = [line.partition("  ")[0] for line in _next(output)]
    assert commands == [
        "bftrainer status t2",
        "bftrainer explain t2",
        "bftrainer logs t2 --follow",
        "bftrainer cancel t2",
    ]
    assert main(["requeue", "t9"]) == 4  # nothing has begun
    assert len(_next(output)) == 1


@pytest.mark.parametrize(
    ("state_dir", "socket", "named"),
    [
        ("{home}/.bftrainer", None, ""),
        ("/srv/b f", None, " --socket '/srv/b f/daemon.sock'"),
        ("/srv/b", "/run/b.sock", " --socket /run/b.sock"),
    ],
)
def test_a_daemon_says_what_to_type_in_another_terminal(
    state_dir: str,
    socket: str | None,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output: Output,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    print_next_of_daemon(Path(state_dir.format(home=tmp_path)), Path(socket) if socket else None)
    commands = [line.partition("  ")[0] for line in _next(output)]
    verbs = ("status", "submit train.py", "drain --all")
    assert commands == [f"bftrainer {verb}{named}" for verb in verbs]
