"""Verbs on studies without a daemon: what ``study run`` refuses, what it hands to a script."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

from bftrainer.cli.main import cli, main
from bftrainer.ground.fence import write_whole
from bftrainer.model.errors import ExitCode
from bftrainer.study.directory import (
    StudyDirectory,
    Wishes,
    change_wishes,
    is_running,
    read_directory,
    read_wishes,
    write_directory,
)
from bftrainer.study.loop import summary_of
from bftrainer.study.trial_table import SILENT, SUMMARY_SCHEMA, TrialRow, row_of
from bftrainer.study.trials import TrialStage
from bftrainer.study.verbs.results import command_of
from tests.unit.study.test_study_parts import known, stored, view

Output = pytest.CaptureFixture[str]
PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "studies.md").read_text()
STUDY: dict[str, Any] = {
    "parameters": {"lr": {"type": "float", "low": 0.001, "high": 1.0}},
    "rule": {"name": "none", "trials": 2, "most": 4},
    "submit": {"runtime": "command", "interpreter": "python3"},
}
HERE = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{HERE}:{os.environ['PATH']}")
    monkeypatch.setenv("BFTRAINER_SOCKET", str(tmp_path / "no-daemon"))
    (tmp_path / "train.py").write_text("print()\n")
    write()
    return tmp_path


def write(**keys: Any) -> None:
    Path("digits.yaml").write_text(json.dumps({**STUDY, **keys}))


def planned(capsys: Output, *words: str) -> dict[str, Any]:
    """Return the trainer that ``study run --dry-run`` would make."""
    assert main(["study", "run", "--dry-run", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["spec"]
    return found


def refused(capsys: Output, *words: str) -> str:
    assert main(["study", *words]) != 0
    return capsys.readouterr().err


def begun(**changes: Any) -> StudyDirectory:
    """Return a study that has begun."""
    from bftrainer.study.verbs.run import _study_of

    study, is_new = _study_of("digits.yaml", "train.py", ("--lr", "{lr}"), None, None)
    assert is_new
    write_directory(replace(study, **changes))
    return read_directory(study.path)


def summarize(study: StudyDirectory, state: str) -> None:
    from bftrainer.api.documents import document

    summary = summary_of(study, Wishes(), state, (), None)
    write_whole(study.summary, [json.dumps(document(SUMMARY_SCHEMA, summary)).encode()])


def test_the_page_s_line_gives_a_program_its_arguments(capsys: Output) -> None:
    found = re.search(r"`study run (digits\.yaml train\.py --\s[^`]+)`", PAGE)
    assert found, "the page shows how parameters become arguments"
    words = shlex.split(found[1])
    assert planned(capsys, *words)["args"][1:] == ["--lr", "0.001"]
    assert planned(capsys, *words, "--", "--json")["args"][-2:] == ["--", "--json"]


@pytest.mark.parametrize("option", ["--dry-run", "--detach", "--dir=x", "--json", "-h"])
def test_options_of_ours_after_the_script_are_refused(option: str, capsys: Output) -> None:
    said = refused(capsys, "run", "digits.yaml", "train.py", "a", option)
    assert "BFT-1000" in said
    assert "before STUDY, or after '--'" in said
    assert planned(capsys, "digits.yaml", "train.py", "--", option)["args"][1:] == [option]
    assert not Path("digits.study").exists()


def test_the_script_is_missing(capsys: Output) -> None:
    assert "SCRIPT is missing" in refused(capsys, "run", "digits.yaml")
    begun()
    assert main(["study", "run", "--dry-run", "digits.yaml"]) == 0


def test_an_interpreter_is_found_on_path_and_its_key_is_named(capsys: Output) -> None:
    args = planned(capsys, "digits.yaml", "train.py")
    assert args["script"] == str(HERE / "python3")
    write(submit={"runtime": "command"})
    said = refused(capsys, "run", "digits.yaml", "train.py")
    assert "'interpreter' (under submit in the study)" in said
    assert "--interpreter" not in said


def test_pbt_is_refused_where_no_trial_could_start_from_another_s_state(capsys: Output) -> None:
    write(rule={"name": "pbt", "population": 4, "interval": 1, "most": 2})
    assert planned(capsys, "digits.yaml", "train.py")["runtime"] == "command"
    write(
        rule={"name": "pbt", "population": 4, "interval": 1, "most": 2},
        submit={"runtime": "horovod"},
    )
    said = refused(capsys, "run", "digits.yaml", "train.py")
    assert "error BFT-1626: " in said
    assert "runtime horovod" in said
    assert not Path("digits.study").exists()


def test_a_runtime_that_counts_no_epochs_is_refused_in_the_words_of_a_study(
    capsys: Output,
) -> None:
    write(submit={"runtime": "mpi"})
    said = refused(capsys, "run", "digits.yaml", "train.py")
    assert "error BFT-1305: " in said
    assert "Give 'unit: samples'; " in said
    write(submit={"runtime": "mpi"}, unit="samples")
    assert planned(capsys, "digits.yaml", "train.py")["samples"] == 4


def test_several_problems_have_a_line_each(capsys: Output) -> None:
    write(metrik="loss", retry=-1)
    lines = refused(capsys, "run", "digits.yaml", "train.py").splitlines()
    assert lines[0] == "error BFT-1623: The study digits.yaml has 2 problems."
    assert [line.split(": ")[1] for line in lines[1:3]] == ["BFT-1621", "BFT-1621"]
    assert lines[3].startswith("next: ")
    Path("digits.yaml").write_text("rule: {name: asha\nmetrik: loss\n")
    assert "error BFT-1621: digits.yaml:2:7: This is not YAML" in refused(
        capsys, "run", "digits.yaml", "train.py"
    )


def test_words_of_refusals(capsys: Output) -> None:
    write(submit={"gre": "gpu:1"})
    assert "?." not in refused(capsys, "run", "digits.yaml", "train.py")
    keys = {name: value for name, value in STUDY.items() if name != "rule"}
    Path("digits.yaml").write_text(json.dumps(keys))
    assert "rule: {name: asha, " in refused(capsys, "run", "digits.yaml", "train.py")
    write()
    begun()
    assert "BFT-1662" in refused(capsys, "plot", "digits", "--out", "x.gif")
    write(rule={**STUDY["rule"], "trials": 3}, seed=1)
    said = refused(capsys, "run", "digits.yaml", "train.py", "--lr", "{lr}")
    assert "BFT-1632" in said
    assert "another seed (0, now 1), rule.trials (2, now 3)." in said


def test_what_is_over_is_neither_paused_nor_resumed(capsys: Output) -> None:
    study = begun()
    summarize(study, "over")
    for verb in ("pause", "resume"):
        assert main(["study", verb, "digits"]) == 0
        assert capsys.readouterr().out == "digits is over; nothing is changed\n"
        assert main(["study", verb, "--json", "digits"]) == 0
        out, err = capsys.readouterr()
        assert err == "digits is over; nothing is changed\n"
        assert not json.loads(out)["is_paused"]
    assert read_wishes(study.path) == Wishes()
    change_wishes(study.path, lambda before: replace(before, more=1))
    assert "BFT-1101" in refused(capsys, "pause", "digits"), "it has trials again"
    assert read_wishes(study.path).is_paused


def test_a_program_reads_what_is_wanted(capsys: Output) -> None:
    study = begun()
    assert main(["study", "add", "--json", "digits", "3"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "bftrainer/study-wishes/1",
        "study": study.study_id,
        "directory": str(study.path),
        "is_paused": False,
        "is_stopped": False,
        "trials": 5,
        "is_running": False,
    }


def test_one_pass_of_hyperband_can_have_more_trials(capsys: Output) -> None:
    write(rule={"name": "hyperband", "least": 1, "most": 9, "eta": 3})
    study, one_pass = begun(), 9 + 5 + 3
    assert main(["study", "add", "--json", "digits", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == one_pass + 3
    assert main(["study", "add", "digits", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"digits has {one_pass + 4} trials now; run: ")
    assert read_wishes(study.path) == Wishes(more=4)


def test_what_was_stopped_has_no_more_trials(capsys: Output) -> None:
    study = begun()
    change_wishes(study.path, partial(replace, is_stopped=True))
    assert "error BFT-1637: " in refused(capsys, "add", "digits", "3")
    assert read_wishes(study.path) == Wishes(is_stopped=True), "nothing is written before"


def test_its_id_names_a_study(capsys: Output) -> None:
    study = begun()
    summarize(study, "over")
    assert main(["study", "status", study.study_id]) == 0
    assert study.study_id in capsys.readouterr().out
    assert "BFT-1633" in refused(capsys, "status", "digits-000000"), "it is another study's"


# Of submit: what a study sets by itself, what it does not take, and what is no field of a trainer.
NOT_OF_A_STUDY = {
    *("name", "epochs", "samples", "steps", "checkpoint_dir", "cwd", "venv", "is_module"),
    *("after", "after_any", "begin_s", "hold", "array", "fresh", "way", "resume_from", "any_owner"),
    *("dry_run", "as_json", "parsable", "wait", "socket_name", "allow_nan"),
    *("time_limit_s", "output", "error", "comment", "dependency", "mail_type", "mail_user"),
    *("partition", "qos", "yaml", "job_script", "is_agreed"),
}
LEARNS = {
    "batch": "64:256", "batch-per-worker": 64, "lr-rule": "none", "workers-per-node": 2,
    "backend": "gloo", "gpus-per-node": 2, "interpreter": sys.executable,
    "container": "image.sqsh", "container-mounts": "/data:/data:ro", "container-runtime": "enroot",
}  # fmt: skip
STOPS = {
    "launch": "first", "checkpoint-signal": "TERM", "save-signal": "USR2",
    "checkpoint-status": 7, "checkpoint-grace": 9.5,
}  # fmt: skip


def given_options() -> dict[str, Any]:
    """A value other than the default of every option that a study takes."""
    Path("curve.json").write_text('{"sizes": [1, 2], "samples_per_s": [10.0, 19.0]}')
    Path("load.sh").write_text("true\n")
    Path("image.sqsh").touch()
    return {
        "weight": 2.5, "checkpoint-interval": 11, "max-failures": 3, "account": "lab",
        "gres": "gpu:2", "constraint": "fast", "export": ["A=1", "B=2 3"], "notify": "/bin/true",
        "curve": "curve.json", "preamble": "load.sh", "rescale-rest": 60, "seed": 5,
    }  # fmt: skip


@pytest.mark.parametrize("own", [STOPS, LEARNS], ids=["stops", "learns"])
def test_the_best_is_trained_again_with_all_its_options(
    own: dict[str, Any], capsys: Output
) -> None:
    options = {**given_options(), **own}
    if own is LEARNS:
        options |= {"runtime": "torch"}
    write(submit={**STUDY["submit"], **options}, nodes="1:3")
    study = begun()
    line = shlex.split(command_of(study, _row()))
    assert line[:2] == ["bftrainer", "submit"]
    assert main(["submit", "--dry-run", "--json", *line[2:]]) == 0
    made = json.loads(capsys.readouterr().out)["spec"]
    (study.path / "spec.json").write_text(json.dumps(made))
    was = json.loads((study.path / "study.json").read_text())["base"]
    differs = {name for name in was if was[name] != made.get(name)}
    assert differs == {"name", "args", "epochs", "checkpoint_dir", "environment"}
    assert made["args"][-2:] == ["--lr", "0.1"]


def test_every_option_of_submit_is_given_above_or_none_of_a_study() -> None:
    """So that an option that is added later is not forgotten."""
    of_submit = cli.get_command(click.Context(cli), "submit")
    assert of_submit is not None
    options = [one for one in of_submit.params if isinstance(one, click.Option)]
    of_studies = {one.opts[-1] for one in options if one.name not in NOT_OF_A_STUDY}
    here = {*given_options(), *STOPS, *LEARNS, "runtime", "interpreter", "nodes", "gpus"}
    assert {name.removeprefix("--") for name in of_studies} == here


def _row() -> TrialRow:
    return replace(row_of(known(stored()), "/c"), parameters={"lr": 0.1})


def test_who_reported_nothing_is_told_what_is_missing() -> None:
    said = "It has trained its budget of 1."
    one = known(stored(), view(state="finished", reason=said))
    assert replace(one, stage=TrialStage.FAILED).reason == SILENT
    assert (
        known(stored(), view(attempt=1, state="failed", reason="It broke.")).reason == "It broke."
    )


@pytest.mark.parametrize("how", [(), ("--detach",)])
def test_where_no_daemon_ever_answers_it_ends(
    how: tuple[str, ...], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr("bftrainer.study.verbs.run.REACH_S", 0.5)
    study = begun()
    assert main(["study", "run", *how, "digits"]) == ExitCode.DAEMON_UNREACHABLE
    said = capsys.readouterr().err
    assert said.count("Waiting up to 0.5 s for it.") == 1
    assert "error BFT-1101: No daemon can be reached at " in said
    assert not is_running(study.path)


def test_a_directory_of_the_study_s_name_does_not_hide_it(capsys: Output) -> None:
    summarize(begun(), "over")
    Path("digits").mkdir()
    assert main(["study", "status", "digits"]) == 0
    assert "digits.study" in capsys.readouterr().out
    Path("other").mkdir()
    assert "no study in other." in refused(capsys, "status", "other")


@pytest.mark.parametrize("ending", ["", ".yaml"])
@pytest.mark.parametrize("verb", ["status", "best", "stop", "plot", "run"])
def test_a_name_that_no_file_can_have_is_refused(verb: str, ending: str, capsys: Output) -> None:
    said = refused(capsys, verb, "a" * 300 + ending)
    assert re.match("error BFT-163[36]: ", said), said


def test_the_summary_of_an_earlier_release_is_read(capsys: Output) -> None:
    """Both the summary and the API's view were once ``bftrainer/study/1``."""
    study = begun()
    summarize(study, "over")
    told = json.loads(study.summary.read_text())
    assert main(["study", "export", str(study.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == told["schema"] == "bftrainer/study-summary/1"
    study.summary.write_text(json.dumps(told | {"schema": "bftrainer/study/1"}))
    assert main(["study", "export", str(study.path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again | {"at_s": 0.0} == shown | {"at_s": 0.0}
    study.summary.write_text(json.dumps(told | {"schema": "bftrainer/trial/1"}))
    assert "BFT-1636" in refused(capsys, "export", str(study.path))
