"""``bftrainer demo``: one short run through everything, and its pure parts."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch import process
from bftrainer.journal.journal import Journal
from bftrainer.lab.demo.local_site import demo_workload, scratch_directory
from bftrainer.lab.demo.picture import Story, draw
from bftrainer.lab.demo.run import EPOCHS, demo_trainers, make_output_directory
from bftrainer.lab.demo.watch import (
    JournalFacts,
    NodeTimeline,
    Rescale,
    Span,
    Use,
    account,
    collect,
    node_seconds,
)
from bftrainer.model.cluster import Job, JobState, Node, NodeState, Snapshot
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import TrainerView
from tests.support.left_over import nothing_left, processes_of
from tests.support.waiting import wait_for

# ---- the real thing ----------------------------------------------------------------


def _command(out: Path) -> tuple[str, ...]:
    demo = (sys.executable, "-m", "bftrainer.cli.main", "demo", "--no-live", "--json")
    return (*demo, "--nodes", "4", "--out", str(out))


@pytest.fixture
def scratch() -> Iterator[Path]:
    with nothing_left("bft-demo-*") as directory:
        yield directory


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_demo_shows_everything_it_promises(scratch: Path, tmp_path: Path) -> None:
    done = process.run(
        _command(tmp_path / "out"),
        timeout_s=230,
        env={**os.environ, "TMPDIR": str(scratch)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert document["schema"] == "bftrainer/demo/1"
    _check_figures(document)
    picture = (tmp_path / "out" / "timeline.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width == 1560
    assert 400 < height < 800
    assert "What to do next" not in done.stdout, "the document only"
    wait_for(lambda: not processes_of(scratch), what="everything has ended")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_demo_on_a_stand_in_of_lsf(scratch: Path, tmp_path: Path) -> None:
    scratch.chmod(0o755)  # ordinary jobs run as another user
    done = process.run(
        (*_command(tmp_path / "out"), "--lsf"),
        timeout_s=280,
        env={**os.environ, "TMPDIR": str(scratch)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [t["state"] for t in document["trainers"]] == ["finished"] * 3
    assert all(t["accuracy"] > 0.9 for t in document["trainers"])
    assert document["is_wait"]
    assert len(document["job_delays_s"]) == 3
    assert document["give_backs"] + document["preemptions"] >= 1
    wait_for(lambda: not processes_of(scratch), what="everything has ended")


def _check_figures(document: dict[str, Any]) -> None:
    trainers = document["trainers"]
    assert [t["name"] for t in trainers] == ["cnn", "mlp", "transformer"]
    assert [t["state"] for t in trainers] == ["finished"] * 3
    for trainer in trainers:
        assert trainer["epochs"] == EPOCHS
        assert trainer["accuracy"] > 0.9
        assert abs(trainer["accuracy"] - trainer["fixed_accuracy"]) < 0.03
    assert document["give_backs"] >= 3
    assert document["give_backs"] > document["preemptions"]
    split = document["node_seconds"]
    parts = ("harvested", "starting", "pausing", "held", "unused")
    assert split["offered"] == pytest.approx(sum(split[part] for part in parts), rel=1e-9)
    assert document["utilisation"] == pytest.approx(split["harvested"] / split["offered"])
    assert 0.4 < document["utilisation"] < 1.0, "0.7 and more beside two busy processes"
    assert document["rescales"] == len(document["pauses_s"]) >= 1
    assert max(document["pauses_s"]) < 10
    assert len(document["job_delays_s"]) == 3
    assert document["worker_failures"] == []


@pytest.mark.long
@pytest.mark.timeout(120)
def test_demo_interrupted_leaves_nothing(scratch: Path, tmp_path: Path) -> None:
    with (tmp_path / "said").open("wb") as said:
        child = process.spawn(
            _command(tmp_path / "out"),
            env={**os.environ, "TMPDIR": str(scratch)},
            cwd=tmp_path,
            stdout=said,
            stderr=said,
        )
    try:
        wait_for(lambda: "(starting)" in (tmp_path / "said").read_text())
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
    finally:
        process.kill_group(child.pid)
        child.wait()
    assert "interrupted" in (tmp_path / "said").read_text()
    wait_for(lambda: not processes_of(scratch), what="everything has ended")


# ---- what it is made of --------------------------------------------------------------


def _view(trainer_id: str, observed: tuple[str, ...], requested: tuple[str, ...]) -> TrainerView:
    spec = TrainerSpec(name="x", user="u", script="/s.py")
    record = TrainerRecord(
        trainer_id=trainer_id, spec=spec, state=TrainerState.RUNNING, submitted_s=0.0
    )
    return TrainerView(
        record=record, planned_nodes=(), requested_nodes=requested, observed_nodes=observed
    )


def _job(job_id: str, node: str, pilot_id: str | None = None) -> Job:
    return Job(
        job_id=job_id,
        user="u",
        partitions=("p",),
        state=JobState.RUNNING,
        n_nodes=1,
        time_limit_s=60,
        nodes=(node,),
        pilot_id=pilot_id,
    )


def _snapshot(at_s: float, states: dict[str, NodeState], *jobs: Job) -> Snapshot:
    nodes = tuple(Node(name=name, state=state) for name, state in states.items())
    return Snapshot(taken_at_s=at_s, nodes=nodes, jobs=jobs)


def test_sample_tells_apart_what_nodes_do() -> None:
    busy, idle = NodeState.ALLOCATED, NodeState.IDLE
    states = {"n1": busy, "n2": busy, "n3": busy, "n4": busy, "n5": idle, "n6": NodeState.DOWN}
    jobs = (
        _job("1", "n1"),
        _job("2", "n2", "p000001"),
        _job("3", "n3", "p000002"),
        _job("4", "n4", "p000003"),
    )
    timeline = NodeTimeline()
    # The trainer's view is a moment older: n1 has been taken from it already.
    view = _view("t1", ("n1", "n2"), ("n3",))
    timeline.add(_snapshot(5.0, states, *jobs), [view])
    assert {n.node: (n.use, n.trainer_id) for n in timeline.now()} == {
        "n1": (Use.ORDINARY, ""),
        "n2": (Use.TRAINING, "t1"),
        "n3": (Use.STARTING, "t1"),
        "n4": (Use.HELD, ""),
        "n5": (Use.FREE, ""),
        "n6": (Use.AWAY, ""),
    }
    timeline.add(Snapshot(taken_at_s=6.0, nodes=None, jobs=()), [])
    assert {n.end_s for n in timeline.now()} == {5.0}, "unknown: no sample"


def test_spans_join_equal_samples_and_cover_all_time() -> None:
    busy, idle = NodeState.ALLOCATED, NodeState.IDLE
    timeline = NodeTimeline()
    ours, theirs = _job("9", "n1", "p1"), _job("1", "n2")
    view = _view("t1", ("n1",), ())
    timeline.add(_snapshot(0.0, {"n1": idle, "n2": busy}, theirs), [])
    timeline.add(_snapshot(1.0, {"n1": busy, "n2": busy}, ours, theirs), [view])
    timeline.add(_snapshot(2.5, {"n1": busy, "n2": busy}, ours, _job("8", "n2", "p2")), [view])
    timeline.add(_snapshot(4.0, {"n1": busy, "n2": idle}, _job("2", "n1")), [])
    timeline.add(_snapshot(5.0, {"n1": busy, "n2": idle}, _job("2", "n1")), [])
    found = timeline.spans()
    assert [(s.node, s.start_s, s.end_s, s.use) for s in found] == [
        ("n1", 0.0, 1.0, Use.FREE),
        ("n1", 1.0, 4.0, Use.TRAINING),
        ("n1", 4.0, 5.0, Use.ORDINARY),
        ("n2", 0.0, 2.5, Use.ORDINARY),
        ("n2", 2.5, 4.0, Use.HELD),
        ("n2", 4.0, 5.0, Use.FREE),
    ]
    assert node_seconds(found, *Use) == 10.0
    assert node_seconds(found, Use.TRAINING) == 3.0


def _rescale(at_s: float, before: int, size: int, pause_s: float) -> Rescale:
    return Rescale(
        trainer_id="t1",
        at_s=at_s,
        size_before=before,
        size=size,
        pause_s=pause_s,
    )


def _span(node: str, use: Use, start_s: float, end_s: float) -> Span:
    return Span(node=node, use=use, start_s=start_s, end_s=end_s)


def test_account_takes_pauses_off_the_harvest() -> None:
    found = [
        _span("n1", Use.TRAINING, 0.0, 10.0),
        _span("n1", Use.FREE, 10.0, 14.0),
        _span("n2", Use.STARTING, 0.0, 10.0),
        _span("n2", Use.ORDINARY, 10.0, 14.0),
    ]
    facts = JournalFacts(generations=(_rescale(0.0, 0, 1, 0.7), _rescale(5.0, 1, 2, 0.5)))
    split = account(found, facts)
    assert split.harvested == pytest.approx(9.0)  # 10 less 0.5 s of two members; a start is none
    assert (split.starting, split.pausing) == (10.0, 1.0)
    assert (split.unused, split.ordinary) == (4.0, 4.0)
    assert split.offered == pytest.approx(24.0)


def test_facts_are_read_from_a_journal(tmp_path: Path) -> None:
    release = {"pilot_id": "p000001", "node": "n1", "reason": "r", "for_job": "17"}
    idle = {**release, "pilot_id": "p000002", "for_job": ""}
    what = {
        "size_before": 1,
        "size": 2,
        "pause_s": 0.25,
        "reason": "planned",
        "step": 7,
    }
    with Journal.open(tmp_path / "j.db", clock=time.time) as journal:
        journal.begin_incarnation()
        for _ in range(2):  # the second decision names the pilot that is still leaving
            journal.append("decision", {"took_ms": 1.5, "plan": {"releases": [release, idle]}})
        journal.append("rescaled", {"trainer_id": "t1", "what": what})
        facts = collect(journal.entries())
    assert [(g.node, g.job_id) for g in facts.give_backs] == [("n1", "17")]
    assert [(r.size_before, r.size, r.pause_s) for r in facts.rescales] == [(1, 2, 0.25)]


@pytest.mark.parametrize("n_nodes", [3, 4, 17])
def test_workload_fits_the_cluster_and_comes_back_for_nodes(n_nodes: int) -> None:
    items = demo_workload(n_nodes).jobs
    assert all(1 <= item.n_nodes <= n_nodes - 1 for item in items)
    assert sum(item.n_nodes for item in items if item.at_s > 0) > 1
    assert all(item.duration_s < item.limit_s for item in items)


def test_picture_without_anything_to_show_is_a_picture(tmp_path: Path) -> None:
    one = _span("n1", Use.ORDINARY, 0.0, 9.0)
    for name, shown in (("none", ()), ("one", (one,))):
        path = tmp_path / f"{name}.png"
        draw(
            Story(
                title="t",
                words="s",
                start_s=0.0,
                spans=shown,
                trainers={"t1": "cnn"},
                give_backs=(),
            ),
            path,
        )
        assert path.read_bytes().startswith(b"\x89PNG")


def test_scratch_is_kept_and_named_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(BftError) as caught, scratch_directory("bft-"):
        raise BftError("BFT-1024", "It failed.", "Read the logs.")
    [kept] = tmp_path.iterdir()
    assert caught.value.next_step == f"Read the logs. Logs are kept in {kept}."
    kept.rmdir()
    with pytest.raises(KeyboardInterrupt), scratch_directory("bft-"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        make_output_directory(tmp_path / "file" / "out")
    assert caught.value.code == "BFT-1026"
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError) as caught:
        demo_trainers()
    assert caught.value.code == "BFT-1021"
