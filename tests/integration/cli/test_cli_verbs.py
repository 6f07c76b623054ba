"""hold, release, update, requeue, top, status -o and where trainers start, on the real socket."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.batch import process
from bftrainer.cli.main import main
from bftrainer.ground import files
from bftrainer.ground.fence import path_for, write_whole
from bftrainer.model.decision import Term
from bftrainer.model.site import Measured
from bftrainer.model.study import Report
from bftrainer.model.trainer import TrainerState
from bftrainer.model.views import SizeSpeed
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import MemoryService, error_code, socket_of

__all__ = ["home", "output", "service"]


def submit(*more: str) -> None:
    assert main(["submit", *more, "train.py"]) == 0


def checkpoint(directory: Path, step: int) -> Path:
    """Write a checkpoint that is complete but for its tensors."""
    path = path_for(directory, step, 1)
    write_whole(path, files.parts_of({"layout": 1}, iter([memoryview(b"state")])))
    return path


# ---- changes ----------------------------------------------------------------------------


def test_a_name_means_the_one_trainer_that_has_it(service: MemoryService, output: Output) -> None:
    for number, name in enumerate(("twin", "twin", "other")):
        submit("-J", name, "--checkpoint-dir", f"of-{number}")
    output.readouterr()
    assert main(["hold", "other", "twin"]) == 2
    said = output.readouterr().err
    assert "BFT-1333" in said
    assert "called twin: t1, t2." in said
    assert [record.held_s for record in service.records.values()] == [None] * 3
    assert main(["cancel", "t1"]) == 0
    assert main(["hold", "twin"]) == 0  # the other one has ended
    assert [i for i, record in service.records.items() if record.held_s is not None] == ["t2"]


def test_hold_release_and_update_change_what_they_name(
    service: MemoryService, output: Output
) -> None:
    submit("--nodes", "1:4")
    submit("-J", "other", "--hold")
    output.readouterr()
    assert main(["hold", "t1", "t1"]) == 0
    held = output.readouterr().out
    assert held == (
        "t1 is held: it writes a checkpoint and leaves its 1 node, until 'bftrainer release t1'\n"
    )
    assert main(["status", "-o", "id,state,reason"]) == 0
    rows = output.readouterr().out.splitlines()
    assert [row.split()[:2] for row in rows] == [["ID", "STATE"], ["t1", "held"], ["t2", "held"]]
    assert "bftrainer release t1" in rows[1]
    assert main(["release", "t2", "t1", "--json"]) == 0
    document = json.loads(output.readouterr().out)
    assert document["schema"] == "bftrainer/trainers/1"
    assert [view["record"]["held_s"] for view in document["trainers"]] == [None, None]
    assert main(["update", "t1", "--nodes", "2:3", "--weight", "5", "--name", "new"]) == 0
    changed = output.readouterr().out
    assert changed == "t1 is queued and from the next decision on: new, 2:3 nodes, weight 5\n"
    spec = service.records["t1"].spec
    assert (spec.n_min, spec.n_max, spec.weight, spec.name) == (2, 3, 5.0, "new")
    assert service.records["t2"].spec.name == "other"


def test_sizes_in_gpus_are_told_and_changed_as_gpus(service: MemoryService, output: Output) -> None:
    submit("--gpus", "1:16")
    submit("-J", "wide", "--gpus-per-node", "4", "--nodes", "1:4")
    output.readouterr()
    assert main(["status", "-o", "id,limits"]) == 0
    rows = [row.split(None, 1) for row in output.readouterr().out.splitlines()]
    assert rows[1:] == [["t1", "1:16 GPUs"], ["t2", "1:4 x 4 GPUs"]]
    assert main(["update", "t1", "t2", "--gpus", "4:8"]) == 0
    changed = output.readouterr().out.splitlines()
    assert [line.split(", ")[1] for line in changed] == ["4:8 GPUs", "1:2 x 4 GPUs"]
    assert [service.records[t].spec.n_max for t in ("t1", "t2")] == [8, 2]
    assert main(["update", "t1", "--nodes", "1:2"]) == 2
    assert error_code(output) == "BFT-1002"
    assert main(["hold", "t1"]) == 0
    assert "leaves its 1 GPU," in output.readouterr().out


def test_a_wrong_change_says_so_and_changes_nothing(service: MemoryService, output: Output) -> None:
    submit("--nodes", "2:4")
    before = service.records["t1"]
    output.readouterr()
    assert main(["update", "t1"]) == 2
    assert error_code(output) == "BFT-1000"
    assert main(["update", "t1", "--weight", "1e99"]) == 2
    assert error_code(output) == "BFT-1016"
    assert main(["update", "t1", "--name", "a\nb"]) == 2
    assert error_code(output) == "BFT-1007"
    assert main(["hold", "t9"]) == 4
    assert error_code(output) == "BFT-1004"
    assert service.records == {"t1": before}
    service.records["t1"] = replace(before, spec=replace(before.spec, user="nobody"))
    for verb in ("hold", "release", "requeue"):
        assert main([verb, "t1"]) == 5
        assert error_code(output) == "BFT-1005"
    client = Client(socket_of())
    for body, code in (({"change": {"n_mix": 1}}, "n_mix"), ({"change": {}, "x": 1}, "x")):
        with pytest.raises(Exception, match=code) as refusal:
            client._request("PATCH", "/v1/trainers/t1", {"schema": "bftrainer/change/1", **body})
        assert "BFT-1103" in str(refusal.value)


def test_requeue_names_the_trainer_that_goes_on(service: MemoryService, output: Output) -> None:
    submit()
    output.readouterr()
    assert main(["requeue", "t1"]) == 0
    assert service.requeued == ["t1"]
    service.set_state("t1", TrainerState.FAILED, "It failed.")
    output.readouterr()
    assert main(["requeue", "t1"]) == 0
    assert output.readouterr().out == "t1 is submitted again as trainer t2\n"
    assert service.records["t2"].spec == service.records["t1"].spec
    assert main(["requeue", "t1", "--json"]) == 2  # t2 uses the directory
    assert error_code(output) == "BFT-1464"


def test_cancel_prints_what_has_ended_as_a_document(service: MemoryService, output: Output) -> None:
    submit()
    output.readouterr()
    assert main(["cancel", "--json", "t1", "t7"]) == 4
    document = json.loads(output.readouterr().out)
    assert [view["record"]["state"] for view in document["trainers"]] == ["cancelled"]
    assert service.records["t1"].state is TrainerState.CANCELLED


# ---- when it starts ---------------------------------------------------------------------


def test_resume_says_whether_this_daemon_takes_nodes_again(
    service: MemoryService, output: Output
) -> None:
    assert main(["resume"]) == 0
    assert output.readouterr().out == "Nodes are taken again.\n"
    service.is_ending = True
    assert main(["resume"]) == 0
    assert (
        output.readouterr().out == "This daemon is about to end; the next one takes nodes again.\n"
    )
    assert main(["resume", "--json"]) == 0
    assert json.loads(output.readouterr().out)["is_ending"]


def test_conditions_are_sent_and_shown(service: MemoryService, output: Output) -> None:
    submit()
    Path("train.py").write_text("#BFT --begin now+1hour\n")
    submit("-J", "b", "--after", "t1", "--after-any", "t1")
    spec = service.records["t2"].spec
    assert (spec.after, spec.after_any) == (("t1",), ("t1",))
    assert 3500 < (spec.begin_s or 0) - time.time() <= 3600
    output.readouterr()
    assert main(["status", "t2"]) == 0
    assert "It starts after t1 (Dependency)." in output.readouterr().out
    for wrong, code in (
        (["--after", "x"], "BFT-1044"),
        (["--begin", "soon"], "BFT-1045"),
        (["--array", "9-1"], "BFT-1046"),
    ):
        assert main(["submit", *wrong, "train.py"]) == 2
        assert error_code(output) == code
    assert len(service.records) == 2


def test_an_array_is_submitted_as_a_whole_or_not_at_all(
    service: MemoryService, output: Output
) -> None:
    assert main(["submit", "--dry-run", "--json", "--array", "0-9", "train.py"]) == 0
    assert json.loads(output.readouterr().out)["array"] == 10
    submit("--parsable", "--array", "0,2")
    assert output.readouterr().out == "t1\nt2\n"
    assert [r.spec.name for r in service.records.values()] == ["train_0", "train_2"]
    assert Path("bft-train_2").is_dir()
    assert main(["submit", "--array", "1-2", "train.py"]) == 2  # bft-train_2 is in use
    assert error_code(output) == "BFT-1014"
    states = [str(r.state) for r in service.records.values()]
    assert states == ["queued", "queued", "cancelled"]
    assert service.killed == ["t3"]


# ---- from which state -------------------------------------------------------------------


def test_a_trainer_starts_from_a_link_to_the_newest_complete_checkpoint(
    service: MemoryService, output: Output
) -> None:
    submit("-J", "old")
    source = Path("bft-old").absolute()
    checkpoint(source, 10)
    newest = checkpoint(source, 20)
    cut = checkpoint(source, 30)
    cut.write_bytes(cut.read_bytes()[:-1])
    before = sorted(source.iterdir())
    submit("-J", "new", "--resume-from", "t1")
    assert [p.name for p in Path("bft-new").glob("*.bft")] == [newest.name]
    assert Path("bft-new", newest.name).read_bytes() == newest.read_bytes()
    assert sorted(source.iterdir()) == before
    assert service.records["t2"].held_s is None
    submit("-J", "held", "--hold", "--resume-from", str(source))
    assert service.records["t3"].held_s is not None
    service.set_state("t2", TrainerState.FINISHED)
    submit("-J", "new", "--fresh")
    assert not list(Path("bft-new").glob("*.bft"))
    (aside,) = Path("bft-new").glob("set-aside-*/*.bft")
    assert aside.name == newest.name


def test_what_cannot_be_resumed_from_is_refused_before_anything_is_done(
    service: MemoryService, output: Output
) -> None:
    submit("-J", "old")
    for place in ("old", "used", "empty"):
        Path(f"bft-{place}").mkdir(exist_ok=True)
    checkpoint(Path("bft-old"), 1)
    used = checkpoint(Path("bft-used"), 2)
    output.readouterr()
    for options in (
        ["-J", "old", "--resume-from", "t1"],  # its own
        ["-J", "used", "--resume-from", "t1"],  # has some
        ["-J", "x", "--resume-from", "bft-empty"],
        ["-J", "x", "--resume-from", "no/such"],
        ["-J", "x", "--runtime", "command", "--fresh", "--interpreter", sys.executable],
    ):
        assert main(["submit", *options, "train.py"]) == 2
        assert error_code(output) == "BFT-1047", options
    assert main(["submit", "-J", "old", "--fresh", "train.py"]) == 2  # t1 writes there
    assert error_code(output) == "BFT-1014"
    assert list(Path("bft-old").glob("*.bft"))
    assert used.is_file()
    assert len(service.records) == 1


def test_a_directory_that_cannot_be_prepared_leaves_no_trainer(
    service: MemoryService, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(Path("bft-train"), 1)

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", fail)
    assert main(["submit", "--fresh", "train.py"]) == 2
    assert error_code(output) == "BFT-1047"
    assert service.records["t1"].state is TrainerState.CANCELLED


# ---- explain, status -o and top ---------------------------------------------------------


def test_explain_tells_samples_and_times_and_the_terms_of_a_policy(
    service: MemoryService, output: Output
) -> None:
    submit()
    output.readouterr()
    assert main(["explain", "t1"]) == 0
    text = output.readouterr().out
    assert "- Two nodes are idle." in text
    assert "decision 7; how fast it trains has not been measured yet" in text
    service.speeds = (
        SizeSpeed(size=1, samples_per_s=256.0, left_s=1400.0, change_samples=-30100.4),
        SizeSpeed(size=2, samples_per_s=480.0, left_s=750.0, change_samples=None),
    )
    assert main(["explain", "t1"]) == 0
    assert output.readouterr().out.splitlines()[-5:] == [
        "decision 7; what it trains with so many nodes:",
        "  NODES  SAMPLES/S    LEFT            GAIN",
        "      1        256  23m20s  -30100 samples",
        "      2        480  12m30s         planned",
        "  GAIN: within the next 120 s, pause included",
    ]
    service.speeds = ()
    service.terms = (
        *(Term("attained", 5.25, "node-h"), Term("place in the queue", 2.0)),
        *(Term("time left", 5423.12, "s"), Term("saved by one more", 2.5, "s")),
    )
    assert main(["explain", "t1"]) == 0
    assert output.readouterr().out.splitlines()[-5:] == [
        "decision 7; what the policy las went by:",
        "  attained            5.25 node-h",
        "  place in the queue  2",
        "  time left           1h30m",
        "  saved by one more   2.5 s",
    ]
    assert main(["explain", "t1", "--json"]) == 0
    first, *_ = json.loads(output.readouterr().out)["terms"]
    service.terms = ()
    service.set_state("t1", TrainerState.FINISHED)
    assert main(["explain", "t1"]) == 0
    assert "measured" not in output.readouterr().out
    assert first == {"name": "attained", "value": 5.25, "unit": "node-h"}


def test_columns_are_chosen_by_name(service: MemoryService, output: Output) -> None:
    submit("--samples", "1000")
    record = service.records["t1"]
    running = replace(record.progress, samples=250, samples_per_s=10.0)
    reports = (Report(value=1.0, epoch=1), Report(value=0.123456, epoch=2))
    service.records["t1"] = replace(record, progress=running, reports=reports)
    output.readouterr()
    assert main(["status", "-o", "help"]) == 0
    meanings = dict(line.split(maxsplit=1) for line in output.readouterr().out.splitlines())
    names = list(meanings)  # each has words that say what it is
    assert {"id", "done", "left", "reason"} <= set(names)
    assert meanings["left"] == "time that the rest takes at its planned size"
    assert main(["status", "-o", "done,left", "t1"]) == 0
    assert output.readouterr().out.split() == ["DONE", "LEFT", "25.0%", "1m15s"]
    assert main(["status", "-o", ",".join(names)]) == 0
    assert main(["status", "-o", "id,colour"]) == 2
    assert error_code(output) == "BFT-1048"
    assert main(["status", "t1"]) == 0
    text = output.readouterr().out
    assert "25.0%, 1m15s left" in text
    assert "metric        0.123456 after epoch 2" in text
    for verb in (["status"], ["top", "-n", "1"]):
        assert main(verb) == 0
        header, row = output.readouterr().out.strip().splitlines()[-2:]
        assert header.split().index("LEFT") - header.split().index("METRIC") in (1, 2)
        assert {"0.1235", "1m15s"} <= set(row.split())


def test_what_is_watched_through_a_pipe_comes_at_once_until_nobody_reads(
    service: MemoryService,
) -> None:
    submit()
    child = process.spawn(
        [sys.executable, "-m", "bftrainer.cli.main", "status", "--watch", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        for _ in range(2):  # a third look is to come: it has not ended
            assert any(line.startswith(b"t1 ") for line in child.stdout)
        child.stdout.close()
        child.wait(timeout=60)
        assert child.stderr.read() == b""
    finally:
        child.kill()
        child.wait()
        child.stderr.close()


def test_top_repeats_its_lines_where_there_is_no_terminal(
    service: MemoryService, output: Output
) -> None:
    submit()
    submit("-J", "gone")
    service.set_state("t2", TrainerState.FINISHED)
    output.readouterr()
    assert main(["top", "-n", "2", "-d", "0.1"]) == 0
    text = output.readouterr().out
    assert text.count("trainers  1 train, 0 wait, 1 ended, 123.4 samples/s together") == 2
    assert text.count("\nt1 ") == 2
    assert "gone" not in text


def test_doctor_and_policy_check_compare_t_fwd_with_what_the_daemon_measured(
    service: MemoryService, output: Output, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("t_fwd_s: 200\n")
    file.chmod(0o600)
    local = ["doctor", "--batch-system", "local", "--batch-option", "socket=/nowhere", "--json"]

    def told(*asked: str) -> list[str]:
        assert main(asked) == 0
        answer = json.loads(output.readouterr().out)
        found = answer.get("findings") or answer.get("notices") or ()
        return [one["setting"] for one in found if one["code"] == "BFT-2119"]

    assert told(*local) == told("policy", "check", str(file), "--json") == []
    service.measured = Measured(rescale_s=150.0, t_fwd_s=100.0)
    assert told(*local) == ["t_fwd_s 100"]  # as the daemon has it
    assert told(*local, "--policy", str(file)) == []  # as it would be with this file
    service.measured = Measured(rescale_s=201.0, t_fwd_s=100.0)
    assert told(*local, "--policy", str(file)) == ["t_fwd_s 200"]
    assert told("policy", "check", str(file), "--json") == ["t_fwd_s 200"]
    assert told("policy", "check", str(file), "--json", "--rescale", "1") == []


def test_doctor_judges_the_policy_of_the_running_daemon(
    service: MemoryService, output: Output, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    network = "10.0.0.0/8"
    file.write_text(
        f"ports: 41000-41007\ncontrol_network: {network}\ntraining_network: {network}\n"
    )
    file.chmod(0o600)
    service.batch_pairs = ("socket=/nowhere",)
    asked = ["doctor", "--firewall", "nftables"]
    assert main(asked) == 2  # the daemon's batch system is known, and no policy
    assert "BFT-1316: There are no rules to print" in output.readouterr().err
    service.policy_files = (str(file),)
    assert main(asked) == 0
    out, err = output.readouterr()
    assert "41000-41007" in out
    assert err == (
        f"Policy judged: {file}, the policy of the running daemon. The running daemon was asked, "
        "and what it measured counts.\n"
    )
    service.policy_files = (str(tmp_path / "of-root.yaml"),)
    assert main(asked) == 2
    assert "Policy judged: the defaults, as the running daemon's" in output.readouterr().err


def test_doctor_finds_agents_that_never_speak_in_what_the_daemon_says(
    service: MemoryService, output: Output
) -> None:
    asked = ["doctor", "--batch-system", "local", "--batch-option", "socket=/nowhere", "--json"]

    def found() -> dict[str, tuple[str, str]]:
        assert main(asked) == 0
        findings = json.loads(output.readouterr().out)["findings"]
        return {one["code"]: (one["cost"], one["remedy"]) for one in findings}

    before = found()
    assert not before.keys() & {"BFT-1314", "BFT-1331"}
    latest = "3 pilots in a row ended before their agent spoke, so requests pause. The latest: p1"
    late = "Its job 7 runs on n1 since 40 s, its agent has not connected to 10.1.0.5:41230."
    service.failures, service.late_agents = (*service.failures, f"BFT-1331: {latest}"), (late,)
    after = found()
    assert after.keys() - before.keys() == {"BFT-1314", "BFT-1331"}
    assert after["BFT-1331"][0] == latest
    assert "see the output of these jobs" in after["BFT-1331"][1]
    assert late in after["BFT-1314"][0]
    service.failures = (*service.failures, "BFT-1317: The clock of this host was set: it is far")
    assert "remove 'clock' in the state directory" in found()["BFT-1317"][1]
    service.failures = (*service.failures, "BFT-2230: The disk with /state is nearly full")
    assert "journal compact --days N" in found()["BFT-2230"][1]
