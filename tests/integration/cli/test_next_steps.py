"""What is told to be typed next: where something has begun, and where a verb was the wrong one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bftrainer.cli.daemon import print_next_of_daemon
from bftrainer.cli.main import main
from bftrainer.daemon.service import has_ended
from bftrainer.lab.verbs.tryout import LEGEND, DemoScreen
from bftrainer.model.trainer import TrainerState
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import MemoryService
from tests.support.snapshots import record

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


@pytest.mark.parametrize(
    ("state", "cancelled_s", "cause", "step"),
    [
        (TrainerState.FINISHED, None, "is finished", "Submit its script with more --epochs"),
        (TrainerState.FAILED, None, "is failed", "'bftrainer requeue t1' starts it again from"),
        (TrainerState.CANCELLED, None, "is cancelled", "'bftrainer requeue t1' starts it again"),
        (TrainerState.RUNNING, 1.0, "is being cancelled", "When it has ended, 'bftrainer requeue"),
    ],
)
def test_what_has_ended_goes_on_by_what_fits_its_end(
    state: TrainerState, cancelled_s: float | None, cause: str, step: str
) -> None:
    error = has_ended(replace(record(state=state), cancelled_s=cancelled_s))
    assert error.cause == f"Trainer t1 {cause}."
    assert error.next_step.startswith(step)


def test_lines_of_a_demonstration_are_explained_once(
    monkeypatch: pytest.MonkeyPatch, output: Output
) -> None:
    monkeypatch.setattr("bftrainer.lab.demo.watch.line", lambda _watch: "n1=job cnn:2@1")
    monkeypatch.setattr("bftrainer.lab.verbs.tryout.LINE_INTERVAL_S", 0.0)
    screen = DemoScreen(is_live=False, on_stderr=False)
    for _ in range(2):
        screen.see(SimpleNamespace(is_over=False))  # type: ignore[arg-type]  # a line needs no more
    lines = output.readouterr().out.splitlines()
    assert lines == [LEGEND, "n1=job cnn:2@1", "n1=job cnn:2@1"]


def test_a_dry_run_tells_what_was_chosen_and_not_what_is_as_ever(
    home: Path, monkeypatch: pytest.MonkeyPatch, output: Output
) -> None:
    monkeypatch.setattr("bftrainer.cli.submit.check_here", lambda *_, **__: ("all is well",))
    argv = [
        "--dry-run",
        "-N",
        "1:3",
        "--epochs",
        "3",
        "--export",
        "A=1 2",
        "train.py",
        "--lr",
        ".1",
    ]
    assert main(["submit", *argv]) == 0
    out, err = output.readouterr()
    told = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (told["nodes"], told["epochs"], told["args"]) == ("1:3", "3", "--lr .1")
    assert told["environment"].startswith("'A=1 2'")
    assert told["checkpoint_dir"] == str(home / "bft-train")
    assert not {"curve", "utility", "trial", "array_id", "n_min"} & told.keys()
    assert "None" not in out
    assert err.startswith("Nothing was submitted; the same command without --dry-run does it")


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
