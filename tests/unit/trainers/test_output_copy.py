"""``submit --output``: the file's name, and the agent's copies of workers' logs in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.fleet.runtimes.base import worker_config
from bftrainer.ground.output_place import OUTPUT, output_path
from bftrainer.ground.protocol import WorkerConfig
from bftrainer.model.errors import ExitCode
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from tests.support.memory_service import prepare_home
from tests.support.waiting import wait_for
from trainers.agent.output_copy import OutputCopies, output_of

Output = pytest.CaptureFixture[str]


@pytest.fixture
def copies() -> Iterator[OutputCopies]:
    made = OutputCopies(look_s=0.01, most_bytes=1000)
    yield made
    made.close()


def asked(capsys: Output, *words: str) -> list[str]:
    """Return the outputs of the trainers that a submission describes."""
    assert main(["submit", "--dry-run", "--json", *words, "train.py"]) == ExitCode.OK
    return [str(json.loads(capsys.readouterr().out)["spec"]["output"])]


def test_the_name_has_what_sbatch_fills_in(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = prepare_home(tmp_path, monkeypatch)
    for words, path in (
        (("-o", "out-%j.log"), "out-t7.log"),
        (("-o", "%x-%5j-100%%.log", "-J", "a%b"), "a%b-000t7-100%.log"),
        (("-e", "err.%j"), "err.t7"),
        (("-o", "out", "-e", "err"), "out"),
        (("-o", "%A.%a"), "t7.0"),
        (("-o", "%x_%a", "-a", "3,4"), "train_3_3"),
    ):
        (pattern,) = asked(capsys, *words)
        assert output_path(pattern, "t7") == f"{home}/{path}"
    assert asked(capsys, "-o", "/dev/null") == ["None"]
    assert asked(capsys) == ["None"]


def test_what_cannot_be_is_refused_before_anything_is_sent(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_home(tmp_path, monkeypatch)
    for name, code in (("%t.log", "BFT-1016"), ("nowhere/out", "BFT-1013"), ("a\nb", "BFT-1007")):
        assert main(["submit", "--dry-run", "-o", name, "train.py"]) == ExitCode.USAGE
        assert f"error {code}: " in capsys.readouterr().err
    assert main(["submit", "--dry-run", "-o", "a", "-e", "b", "train.py"]) == ExitCode.OK
    assert "--error b stays empty" in capsys.readouterr().err


def test_workers_are_told_the_file_and_without_one_nothing() -> None:
    def configured(output: str | None) -> WorkerConfig:
        spec = TrainerSpec(name="n", user="u", script="/s", output=output)
        record = TrainerRecord(
            trainer_id="t1", spec=spec, state=TrainerState.QUEUED, submitted_s=0.0
        )
        return worker_config(
            record, worker_id="t1-1-1", node="n", address="a", incarnation=1, log_path="/l"
        )

    assert output_of(configured("/home/u/out-%j")) == "/home/u/out-t1"
    assert output_of(configured(None)) == ""
    assert OUTPUT not in dict(configured(None).environment)


def test_whole_lines_are_copied_at_once_and_the_rest_at_the_end(
    tmp_path: Path, copies: OutputCopies
) -> None:
    log, output = tmp_path / "logs" / "w.log", tmp_path / "out"
    output.write_text("of an earlier worker\n")
    copies.begin("w", str(log), str(output))  # the worker makes its log later
    log.parent.mkdir()
    log.write_text("first\nsec")
    wait_for(lambda: "first\n" in output.read_text(), what="a line is copied")
    assert output.read_text() == "of an earlier worker\nfirst\n"
    with log.open("a") as file:
        file.write("ond\nlast")
    copies.end("w")
    wait_for(lambda: output.read_text().endswith("last"), what="the rest is copied")
    assert output.read_text() == "of an earlier worker\nfirst\nsecond\nlast"


def test_a_file_that_grows_too_large_says_so_and_ends(tmp_path: Path, copies: OutputCopies) -> None:
    log, output = tmp_path / "w.log", tmp_path / "out"
    copies.begin("w", str(log), str(output))
    log.write_text("x" * 1500 + "\n")
    copies.end("w")
    copies.close()
    text = output.read_text()
    assert text.startswith("x" * 1000)
    assert "--output ends here, at 1000 bytes; 'bftrainer logs' has all" in text
    copies.begin("v", str(log), str(output))
    copies.close()
    assert output.read_text() == text


def test_a_link_is_not_written_through_and_the_log_says_why(
    tmp_path: Path, copies: OutputCopies
) -> None:
    log, victim, output = tmp_path / "w.log", tmp_path / "victim", tmp_path / "out"
    log.write_text("")
    victim.write_text("")
    output.symlink_to(victim)
    copies.begin("w", str(log), str(output))
    wait_for(lambda: "--output cannot be written" in log.read_text(), what="the log says it")
    assert "symbolic link" in log.read_text()
    copies.end("w")
    copies.close()
    assert victim.read_text() == ""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    copies.begin("v", str(log), str(pipe))  # it does not wait for a reader
    wait_for(lambda: "not a regular file" in log.read_text(), what="the log says that, too")
