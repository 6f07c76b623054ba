"""submit says from where a trainer goes on, and refuses a checkpoint of other arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.elastic.checkpoints.origin_check import CONTINUE, OriginCheck
from bftrainer.fleet.runtimes.base import worker_config
from bftrainer.ground import files
from bftrainer.ground.fence import path_for, write_whole
from bftrainer.model.trainer import TrainerState
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import MemoryService, error_code

__all__ = ["home", "output", "service"]


@pytest.fixture(autouse=True)
def _script(home: Path) -> None:
    (home / "train.py").write_text("print('takes --lr and --epochs')\n")


def write(
    service: MemoryService, trainer_id: str, *, step: int = 60, is_bare: bool = False
) -> Path:
    """End a trainer after the checkpoint that a worker of it writes."""
    record = service.records[trainer_id]
    where = {"worker_id": "w1", "node": "n1", "address": "127.0.0.1", "log_path": ""}
    config = worker_config(record, incarnation=0, **where)
    header = {"layout": 1, **({} if is_bare else OriginCheck(config).header())}
    path = path_for(Path(record.spec.checkpoint_dir), step, 1)
    write_whole(path, files.parts_of(header, iter([memoryview(b"state")])))
    service.set_state(trainer_id, TrainerState.FINISHED)
    return path


def submit(output: Output, *words: str) -> str:
    """Submit; return what is said beside the id."""
    output.readouterr()
    assert main(["submit", "--parsable", *words]) == 0
    said = output.readouterr()
    assert said.out.startswith("t")
    return said.err


def refused(service: MemoryService, output: Output, *words: str) -> str:
    """Submit in vain; return what is said."""
    before = dict(service.records)
    output.readouterr()
    assert main(["submit", *words]) == 2
    assert service.records == before
    return output.readouterr().err


FIRST = ("train.py", "--lr", "0.1", "--epochs", "3")


def test_other_arguments_are_refused_with_three_ways_on(
    service: MemoryService, output: Output
) -> None:
    assert submit(output, *FIRST) == ""
    kept = write(service, "t1")
    other = ("train.py", "--lr", "0.01", "--epochs", "6")
    for options in ((), ("--dry-run",)):
        said = refused(service, output, *options, *other)
        assert "BFT-1450" in said
        assert "(step 60 of t1)" in said
        assert "--lr 0.01 (it has --lr 0.1)" in said
        assert all(way in said for way in ("--fresh", "-J NAME", "--continue"))
    assert kept.is_file()
    assert submit(output, "-J", "mine", *other) == ""
    service.set_state("t2", TrainerState.CANCELLED)
    said = submit(output, "--continue", *other)
    assert "train goes on from step 60 of t1: --lr 0.01" in said
    assert dict(service.records["t3"].spec.environment)[CONTINUE] == "arguments"
    service.set_state("t3", TrainerState.CANCELLED)
    assert submit(output, "--fresh", *other) == ""
    assert not kept.exists()


def test_the_same_and_a_greater_length_go_on_and_say_from_where(
    service: MemoryService, output: Output
) -> None:
    submit(output, *FIRST)
    write(service, "t1")
    assert submit(output, "--epochs", "9", *FIRST) == "train goes on from step 60 of t1\n"
    write(service, "t2", step=70)
    said = submit(output, "train.py", "--lr", "0.1", "--epochs", "6")
    assert said == "train goes on from step 70 of t2: --epochs 6 (it has --epochs 3)\n"
    write(service, "t3", step=80)
    with Path("train.py").open("a") as script:
        script.write("# edited\n")
    said = submit(output, "train.py", "--epochs", "6", "--lr", "0.1")
    assert "step 80 of t3: the same arguments in another order, the script was edited" in said


def test_one_of_an_earlier_release_is_told(service: MemoryService, output: Output) -> None:
    submit(output, *FIRST)
    write(service, "t1", is_bare=True)
    said = submit(output, "train.py", "--lr", "7")
    assert "goes on from step 60: that checkpoint does not say with which arguments" in said


def test_variables_count_where_they_are_given_by_name(
    service: MemoryService, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGIN_SESSION", "1")
    monkeypatch.setenv("WANDB_API_KEY", "secret-1")
    given = ("--export", "ALL", "--export", "WANDB_API_KEY", "--export")
    submit(output, *given, "LR=0.1", "train.py")
    path = write(service, "t1")
    assert b"secret-1" not in path.read_bytes()
    monkeypatch.setenv("LOGIN_SESSION", "2")
    monkeypatch.setenv("WANDB_API_KEY", "secret-2")
    said = submit(output, *given, "LR=0.1", "train.py")
    assert said.endswith("step 60 of t1: variable WANDB_API_KEY changed\n")
    service.set_state("t2", TrainerState.FINISHED)
    assert "variable LR changed" in refused(service, output, *given, "LR=0.2", "train.py")


def test_arrays_go_on_index_by_index(service: MemoryService, output: Output) -> None:
    submit(output, "--array", "0-1", "train.py", "--x", "1")
    for trainer_id in ("t1", "t2"):
        write(service, trainer_id)
    said = submit(output, "--array", "0-1", "train.py", "--x", "1")
    assert said == "train_0 goes on from step 60 of t1\ntrain_1 goes on from step 60 of t2\n"
    for trainer_id in ("t3", "t4"):
        service.set_state(trainer_id, TrainerState.FINISHED)
    assert "--x 2" in refused(service, output, "--array", "0-1", "train.py", "--x", "2")


def test_what_is_resumed_from_is_told_and_the_arguments_count(
    service: MemoryService, output: Output
) -> None:
    submit(output, *FIRST)
    write(service, "t1")
    said = submit(output, "-J", "more", "--resume-from", "t1", "train.py", "--lr", "0.01")
    assert "more goes on from step 60 of t1: --lr 0.01 (it has --lr 0.1)" in said
    assert dict(service.records["t2"].spec.environment)[CONTINUE] == "schedule-new"
    words = ("-J", "old", "--resume-from", "t1", "--continue=schedule-old", "train.py")
    submit(output, *words)
    assert dict(service.records["t3"].spec.environment)[CONTINUE] == "schedule-old"


@pytest.mark.parametrize(
    ("words", "way", "args"),
    [
        (["--continue", "train.py", "--continue"], "arguments", ["--continue"]),
        (["--continue=schedule-old", "train.py", "-q", "--continue"], "schedule-old",
         ["-q", "--continue"]),
        (["--continue", "--", "train.py", "--", "--continue"], "arguments", ["--", "--continue"]),
        (["train.py", "--continue"], None, ["--continue"]),
    ],
)  # fmt: skip
def test_continue_is_ours_before_the_script_and_the_script_s_after_it(
    service: MemoryService, output: Output, words: list[str], way: str | None, args: list[str]
) -> None:
    output.readouterr()
    assert main(["submit", "--dry-run", "--json", *words]) == 0
    spec = json.loads(output.readouterr().out)["spec"]
    assert dict(spec.get("environment", ())).get(CONTINUE) == way
    assert list(spec["args"]) == args


def test_it_is_refused_where_it_says_nothing(service: MemoryService, output: Output) -> None:
    assert main(["submit", "--continue=else", "train.py"]) == 2
    assert error_code(output) == "BFT-1000"
    assert main(["submit", "--continue", "--runtime", "command", "train.py"]) == 2
    assert error_code(output) in ("BFT-1001", "BFT-1047")
