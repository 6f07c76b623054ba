"""Options of ``submit`` that are written as for sbatch, and words on those without meaning."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.cli import notification
from bftrainer.cli.main import main
from bftrainer.cli.option_values import parse_gpus, parse_unit
from bftrainer.cli.sbatch_habits import notes_on_partition
from bftrainer.cli.sbatch_options import OPTIONS
from bftrainer.cli.sbatch_values import Dependency, parse_dependency, parse_mail_types
from bftrainer.cli.submit import GROUPS, submit
from bftrainer.lab.verbs.tryout import try_out
from bftrainer.model.canonical import encode
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.trainer_spec import TrainerSpec
from tests.integration.cli_fixtures import output, service
from tests.support.memory_service import MemoryService, prepare_home

Output = pytest.CaptureFixture[str]

__all__ = ["output", "service"]

OF_THE_PROGRAM = {"--help", "-h", "--usage", "--version", "-V"}


def typed_names() -> set[str]:
    """Options of sbatch that submit or try does not take."""
    names: set[str] = {"--ncpus", "--memory"}
    for sbatch_option in OPTIONS.values():
        names.add(f"--{sbatch_option.name}")
        if sbatch_option.short:
            names.add(f"-{sbatch_option.short}")
    taken_by_both = {name for parameter in submit.params for name in parameter.opts}
    taken_by_both &= {name for parameter in try_out.params for name in parameter.opts}
    return names - OF_THE_PROGRAM - taken_by_both


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(notification, "mailer", lambda: "/usr/sbin/sendmail")
    return prepare_home(tmp_path, monkeypatch)


def asked(output: Output, *words: str) -> dict[str, Any]:
    """Return the fields of the trainer that a command line describes."""
    line = ("submit", "--test-only", "--json", "--runtime", "command", *words, "sleep", "1")
    status = main(line)
    printed = output.readouterr()
    assert status == ExitCode.OK, printed.err
    fields: dict[str, Any] = json.loads(printed.out)["spec"]
    return fields


def refused(output: Output, *words: str) -> str:
    assert main(["submit", "--runtime", "command", *words, "sleep", "1"]) == ExitCode.USAGE
    return output.readouterr().err


@pytest.mark.usefixtures("home")
def test_a_command_line_of_sbatch_says_the_same_here(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL", "small")
    spec = asked(
        capsys, "-J", "digits", "-G", "a100:2", "-H", "--comment", "the third run",
        "-d", "afterok:t1:t2,afterany:t3", "--mail-type=FAIL", "--mail-user=ada@example.org",
        "--export=NONE,MODEL,LR=0.1", "-b", "2099-01-01", "-A", "physics", "-C", "nvlink",
    )  # fmt: skip
    assert (spec["name"], spec["hold"], spec["account"]) == ("digits", True, "physics")
    assert (spec["n_min"], spec["n_max"], spec["gpus_per_unit"]) == (2, 2, 1)
    assert (spec["after"], spec["after_any"]) == (["t1", "t2"], ["t3"])
    assert (spec["notify"], spec["notify_at"]) == ("mail:ada@example.org", ["fail"])
    assert spec["environment"] == [["MODEL", "small"], ["LR", "0.1"]]
    assert spec["comment"] == "the third run"


def test_unused_options_of_sbatch_leave_no_trace_in_what_is_journalled() -> None:
    spec = TrainerSpec(name="digits", user="ada", script="/s")
    assert {"comment", "notify_at"}.isdisjoint(json.loads(encode(spec)))
    assert json.loads(encode(replace(spec, comment="mine")))["comment"] == "mine"


@pytest.mark.usefixtures("home")
def test_a_mail_is_sent_of_what_sbatch_would_mail(capsys: Output) -> None:
    ada = ("--mail-user", "ada")
    assert asked(capsys, *ada)["notify"] == "mail:ada"
    everything = asked(capsys, *ada, "--mail-type", "all")
    assert (everything["notify"], everything["notify_at"]) == ("mail:ada", [])
    assert asked(capsys, *ada, "--mail-type", "END")["notify_at"] == ["end", "fail"]
    assert asked(capsys, *ada, "--mail-type", "NONE").get("notify", "") == ""
    assert main(["submit", "--test-only", "--mail-type", "BEGIN", "train.py"]) == ExitCode.OK
    said = capsys.readouterr()
    assert "no mail is sent of BEGIN" in said.err
    assert "notify" not in said.out
    assert "BFT-1066" in refused(capsys, "--mail-type", "SOMETIMES")
    assert "BFT-1066" in refused(capsys, "--notify", "echo", *ada)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A=1", (("A", "1"),)),
        ("A=1,2", (("A", "1,2"),)),  # as before there were lists
        ("ALL,A=1,B=x=y", (("*ALL", ""), ("A", "1"), ("B", "x=y"))),
        ("NONE", (("*NONE", ""),)),
        ("BFT_SET,A=1", (("BFT_SET", "here"), ("A", "1"))),
    ],
)
def test_export_is_one_variable_or_a_list(
    text: str, names: tuple[tuple[str, str], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BFT_SET", "here")
    context = submit.make_context("submit", ["--export", text, "train.py"])
    assert context.params["environment"] == names


@pytest.mark.usefixtures("home")
def test_two_variables_in_one_value_are_told(capsys: Output) -> None:
    assert asked(capsys, "--export", "A=1,B=2")["environment"] == [["A", "1,B=2"]]
    assert main(["submit", "--dry-run", "--export", "A=1,B=2", "train.py"]) == ExitCode.OK
    assert "write --export NONE,A=1,B=2" in capsys.readouterr().err


def test_dependencies_are_of_trainers() -> None:
    assert parse_dependency("afterok:t1:t2,afterany:t3,afterok:t1") == Dependency(
        after=("t1", "t2"), after_any=("t3",)
    )
    for text, words in (
        ("afterok:4711", "4711 is the id of a batch job"),
        ("afterok:12_3", "12_3 is the id of a batch job"),
        ("singleton", "'singleton' is no dependency"),
        ("afternotok:t1", "'afternotok:t1' is no dependency"),
        ("afterok", "'afterok' is no dependency"),
        ("afterok:t1?afterany:t2", "not the id of a trainer"),
        ("", "'' is no dependency"),
    ):
        with pytest.raises(UsageError, match="BFT-1044") as caught:
            parse_dependency(text)
        assert words in caught.value.cause
    assert parse_mail_types("end,time_limit").told == ("end", "fail", "time")


def test_gpus_are_written_as_for_sbatch() -> None:
    assert (parse_gpus("a100:2").gpu_type, parse_gpus("a100:2").sizes[:2]) == ("a100", (2, 2))
    assert parse_gpus("4").sizes[:2] == (4, 4)
    assert parse_unit("a100:4") == ("a100", 4)


@pytest.mark.usefixtures("home")
def test_partition_and_qos_are_ignored_in_one_line_each(home: Path, capsys: Output) -> None:
    assert main(["submit", "--dry-run", "-p", "gpu", "train.py"]) == ExitCode.OK
    said = capsys.readouterr().err
    assert "note: --partition gpu is ignored: the daemon chooses the nodes" in said
    script = home / "train.py"
    script.write_text(f"#BFT --qos=long\n{script.read_text()}")
    assert main(["submit", "--dry-run", "train.py"]) == ExitCode.OK
    assert "note: --qos long is ignored" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("partitions", "pairs", "served"),
    [
        ("gpu", ("pilot_partition=scavenge", "is_own=true"), "scavenge"),
        ("gpu,long", ("pilot_partition=scavenge,bf",), "scavenge,bf"),
        ("gpu", ("pilot_partition=gpu",), ""),
        ("long,gpu", ("pilot_partition=bf,gpu",), ""),
        ("gpu", ("is_own=true",), ""),  # a site's daemon, whose policy names it
        (None, ("pilot_partition=gpu",), ""),
    ],
)
def test_a_partition_of_which_the_daemon_lends_nothing_is_noted(
    partitions: str | None, pairs: tuple[str, ...], served: str
) -> None:
    notes = notes_on_partition(partitions, pairs)
    assert len(notes) == bool(served)
    assert all(f"lends nodes of partition {served}, and none of gpu" in note for note in notes)


def test_the_note_is_printed_beside_the_id(service: MemoryService, output: Output) -> None:
    service.batch_pairs = ("pilot_partition=scavenge",)
    assert main(["submit", "--hold", "-p", "gpu", "train.py"]) == ExitCode.OK
    printed = output.readouterr()
    assert "this daemon lends nodes of partition scavenge, and none of gpu" in printed.err
    assert main(["submit", "--hold", "-p", "scavenge", "-J", "b", "train.py"]) == ExitCode.OK
    assert "lends nodes" not in output.readouterr().err


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("name", sorted(typed_names()))
def test_an_option_without_meaning_says_why_and_what_to_do(name: str, capsys: Output) -> None:
    taken = {flag for option in submit.params for flag in option.opts}
    if name in taken:
        assert main(["try", name, "1", "train.py"]) == ExitCode.USAGE
    else:
        assert main(["submit", name, "1", "train.py"]) == ExitCode.USAGE
    why, _, step = capsys.readouterr().err.rstrip().partition("\nnext: ")
    assert why.startswith(f"error BFT-1000: Option {name} of sbatch has no meaning here. ")
    assert step.endswith(".")
    assert "\n" not in why + step


@pytest.mark.usefixtures("home")
def test_a_line_of_a_script_says_it_too(home: Path, capsys: Output) -> None:
    script = home / "train.py"
    script.write_text("#BFT --mem=4G\n")
    assert main(["submit", "--dry-run", "train.py"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "train.py:1: Option --mem of sbatch has no meaning here." in said
    assert "next: Say its sizes by --nodes" in said


@pytest.mark.usefixtures("home")
def test_a_verb_that_trains_at_once_names_the_verb_that_takes_it(capsys: Output) -> None:
    assert main(["try", "--begin", "now", "train.py"]) == ExitCode.USAGE
    assert "next: Omit it; 'bftrainer submit' takes --begin." in capsys.readouterr().err


def test_the_help_of_submit_is_grouped_and_fits(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["submit", "--help"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    titles = [line.removesuffix(":") for line in lines if re.match(r"[A-Z].*:\Z", line)]
    assert titles == [*GROUPS, "Options"]
    shown = [word for line in lines for word in re.findall(r"^  (?:-\w, )*(--[a-z-]+)", line)]
    assert len(shown) == len(set(shown))
    assert {flag for flags in GROUPS.values() for flag in flags} <= set(
        re.split(r"[ ,]+", " ".join(lines))
    )
