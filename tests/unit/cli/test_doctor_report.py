"""What ``bftrainer doctor`` prints: whose policy was judged, and findings by whom they concern."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from bftrainer.batch.commands import why_failed
from bftrainer.batch.process import Completed
from bftrainer.cli.findings import Judged, choose_policy, print_findings, status_of
from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode
from bftrainer.model.site import NOTHING, Finding, Weight
from slurm_plugins.doctor import SlurmSettings, findings, unknown
from tests.support.terminals import Terminal
from tests.unit.slurm_plugins.test_slurm_doctor import BATCH, GOOD, configured

Output = pytest.CaptureFixture[str]
NO_DAEMON = "No daemon can be reached at /run/bftrainer/daemon.sock (No such file)."
JUDGED = Judged(files=(Path("/etc/p.yaml"),), why="which --policy names", no_daemon=NO_DAEMON)
# One finding of each kind, from what Slurm prints.
BAD = replace(
    configured(Epilog="/etc/slurm/check", KillWait="30 sec", PreemptMode="PRIORITY,CANCEL"),
    partitions=BATCH,
)


def printed(capsys: Output, settings: SlurmSettings) -> list[str]:
    print_findings(JUDGED, findings(settings), NOTHING, as_json=False)
    return capsys.readouterr().out.splitlines()


def test_the_report_goes_from_what_stops_you_to_what_could_be_better(capsys: Output) -> None:
    lines = printed(capsys, BAD)
    assert lines[0] == (
        "Policy judged: /etc/p.yaml, which --policy names. No daemon was asked, so nothing is "
        f"measured. {NO_DAEMON}"
    )
    assert [line for line in lines if line and not line.startswith((" ", "Policy judged"))] == [
        "What stops you: no node is used (1)",
        "What harms ordinary jobs (1)",
        "What was not found out: it may harm ordinary jobs (1)",
        "What could be better: it costs you nodes (1)",
    ]
    place = lines.index("What stops you: no node is used (1)")
    assert lines[place + 1 : place + 6] == [
        "  BFT-1261 PartitionName=bf",
        "    There is no such partition, so no pilot can be submitted.",
        "    change: PartitionName=bf Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=0",
        "    next:   scontrol reconfigure",
        "",
    ]


def test_lines_to_be_copied_are_lines_of_their_own(capsys: Output) -> None:
    lines = printed(capsys, configured(Epilog="/etc/slurm/check"))
    about, *to_copy, command = (line.strip() for line in lines[-4:])
    assert about.startswith("change: as the first lines of the script, if what it does can wait")
    assert to_copy == [
        "# a pilot of bftrainer: Slurm itself ends its processes",
        '[ "$SLURM_JOB_PARTITION" = bf ] && exit 0',
    ]
    assert command == "next:   bftrainer report harm"


def test_what_was_not_found_out_is_said_with_the_reason_in_slurms_words(capsys: Output) -> None:
    errors = "slurm_load_ctl_conf error: Unable to contact\n  slurm controller\n\nsecond line\n"
    done = Completed(
        argv=("/usr/bin/scontrol",), returncode=1, stdout="", stderr=errors, wall_s=0.1
    )
    print_findings(JUDGED, (unknown(why_failed(done)),), NOTHING, as_json=False)
    text = capsys.readouterr().out
    assert "What was not found out: it may harm ordinary jobs (1)\n  BFT-1272 Slurm's" in text
    assert (
        "They were not found out, as they could not be read: scontrol ended with status 1: "
        "slurm_load_ctl_conf error: Unable to contact; slurm controller; second line."
    ) in text
    assert "unknown" not in text


def test_the_status_is_8_where_something_stops_you_or_may_harm_jobs() -> None:
    def of(*weights: Weight) -> ExitCode:
        made = (
            Finding(code="BFT-1261", weight=weight, setting="s", cost="c", remedy="r")
            for weight in weights
        )
        return status_of(tuple(made))

    assert (of(), of(Weight.LOSS)) == (0, 0)
    for weight in (Weight.STOP, Weight.HARM, Weight.UNKNOWN):
        assert of(Weight.LOSS, weight) == 8


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_nothing_but_commands_is_wider_than_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    for name, value in {"TERM": "xterm", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)
    print_findings(JUDGED, findings(BAD), NOTHING, as_json=False)
    lines = screen.getvalue().splitlines()
    wide = [line.strip() for line in lines if cell_len(line) > width and len(line.split()) > 1]
    assert all(line.startswith(("next:", "# a pilot", "[ ")) for line in wide)
    assert not wide or width < 80
    words = re.sub(r"\s+", " ", screen.getvalue())
    assert "There is no such partition, so no pilot can be submitted." in words


@pytest.mark.parametrize(
    ("status_files", "is_readable", "first"),
    [
        (("/a.yaml", "/b.yaml"), (True, True), "/a.yaml, /b.yaml, the policy of the running"),
        (("/a.yaml",), (False,), "the defaults, as the running daemon's /a.yaml cannot be read"),
        ((), (), "the defaults, as the running daemon has no policy file"),
    ],
)
def test_the_daemons_policy_is_judged_where_it_can_be_read(
    status_files: tuple[str, ...], is_readable: tuple[bool, ...], first: str
) -> None:
    class Status:
        policy_files = status_files

    judged = choose_policy(None, Status(), no_daemon="", is_readable=is_readable)  # type: ignore[arg-type]
    assert judged.sentence().startswith(f"Policy judged: {first}")
    assert "The running daemon was asked" in judged.sentence()


def test_without_a_daemon_the_verb_says_that_none_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("BFTRAINER_STATE_DIR", str(tmp_path))
    local = ["--batch-system", "local", "--batch-option", f"socket={tmp_path}/s"]
    assert main(["doctor", *local]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("Policy judged: the defaults, as --policy names no file. No daemon was")
    assert f"{tmp_path}/daemon.sock" in first
    assert last == "Nothing to change."
    assert main(["doctor", *local, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "bftrainer/doctor/1"
    assert (said["policy_files"], said["findings"], said["is_safe"]) == ([], [], True)
    assert "daemon.sock" in said["no_daemon"]


def test_each_finding_has_a_command_that_comes_next() -> None:
    commands = {f.code: f.command for f in findings(replace(BAD, has_hook=False))}
    assert commands == {
        "BFT-1261": "scontrol reconfigure",
        "BFT-1572": "scontrol reconfigure",
        "BFT-1267": "scontrol reconfigure",
        "BFT-1271": "bftrainer help slurm-site",
        "BFT-1274": "bftrainer report harm",
    }
    assert findings(replace(GOOD, partitions=BATCH))[0].weight is Weight.STOP
