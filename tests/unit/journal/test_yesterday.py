"""What a change of the policy would have done: from a journal and from a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bftrainer.batch.traces import SAMPLE
from bftrainer.cli.main import main
from bftrainer.journal.journal import Journal
from bftrainer.lab.yesterday import past_of
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import DecisionInput, DecisionRecord, Memory, PilotView, Settings
from bftrainer.model.trainer import TrainerSpec
from milp.problem import Curve
from tests.support.snapshots import T0, Fold, idle_nodes, pilot, running, snapshot, with_state

HOUR_S = 3600.0
CURVE = Curve(sizes=(1, 2), samples_per_s=(10.0, 20.0))


def write_journal(path: Path) -> None:
    """Three nodes for three hours; n3 is taken after one, and n1 is ours from the second on."""
    looks: Sequence[tuple[float, tuple[str, ...], tuple[PilotView, ...]]] = (
        (T0, (), ()),
        (T0 + HOUR_S, ("n3",), ()),
        (T0 + 2 * HOUR_S, ("n1", "n3"), (pilot("n1"),)),
        (T0 + 3 * HOUR_S, ("n1", "n3"), (pilot("n1"),)),
    )
    clock_s = T0
    with Journal.open(path, clock=lambda: clock_s) as journal:
        journal.begin_incarnation()
        for name, user in (("a", "ann"), ("b", "bob")):
            spec = TrainerSpec(name=name, user=user, script="/s.py", n_max=2, curve=CURVE)
            journal.submit(spec, T0)
        for at_s, busy, pilots in looks:
            nodes = with_state(idle_nodes(3), NodeState.ALLOCATED, *busy)
            jobs = [running("7", "n3")] if "n3" in busy else []
            seen, settings = snapshot(nodes, jobs, at_s=at_s), Settings()
            given = DecisionInput(
                now_s=at_s,
                snapshot=seen,
                is_new_snapshot=True,
                pilots=pilots,
                trainers=(),
                settings=settings,
                memory=Memory(),
            )
            plan = Fold(memory=Memory(), settings=settings).decide(seen, pilots, ())
            taken = DecisionRecord(event=None, input=given, policy_hash="x", plan=plan, took_ms=1.0)
            clock_s = at_s
            journal.append("decision", taken)


def write_policies(directory: Path) -> list[str]:
    paths = []
    for name, text in (("old.yaml", ""), ("new.yaml", "max_nodes: 1\n")):
        path = directory / name
        path.write_text(f"reserve_nodes_per_type: 0\n{text}")
        path.chmod(0o600)
        paths.append(str(path))
    return paths


def test_a_journal_tells_which_nodes_were_free_or_ours(tmp_path: Path) -> None:
    write_journal(tmp_path / "journal.db")
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0, is_verified=False) as journal:
        past = past_of(journal, hours=24.0)
        last = past_of(journal, hours=2.0)
    trace = past.trace
    found = {
        (trace.names[node], (start_s - T0) / HOUR_S, (end_s - T0) / HOUR_S)
        for node, start_s, end_s in zip(trace.node, trace.start_s, trace.end_s, strict=True)
    }
    assert found == {("n1", 0.0, 3.0), ("n2", 0.0, 3.0), ("n3", 0.0, 1.0)}
    assert (past.decisions, past.unread) == (4, 0)
    assert [s.user for s in past.workload] == ["ann", "bob"]
    assert last.trace.node_seconds() == 4 * HOUR_S


def test_two_policies_are_compared_on_a_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_journal(tmp_path / "journal.db")
    argv = ["policy", "test", *write_policies(tmp_path)]
    argv += ["--journal", str(tmp_path / "journal.db")]
    assert main([*argv, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    old, new = told["old"], told["new"]
    assert old["offered_node_h"] == pytest.approx(7.0)
    assert old["harvested_node_h"] > 6.5
    assert 2.5 < new["harvested_node_h"] <= new["held_node_h"] <= 3.0
    assert old["utilization"] > new["utilization"] > 0.0
    # With one node at most, the second user's trainer never starts.
    assert [(w["user"], w["never"]) for w in new["waits"]] == [("ann", 0), ("bob", 1)]
    assert [(w["user"], w["never"]) for w in old["waits"]] == [("ann", 0), ("bob", 0)]
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert "wait of bob, never started" in said
    assert said.count("note: ") == len(told["not_known"]) > 0


def test_two_policies_are_compared_on_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["policy", "test", *write_policies(tmp_path), "--trace", str(SAMPLE), "--hours", "1"]
    assert main([*argv, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["hours"] == pytest.approx(1.0)
    assert told["old"]["harvested_node_h"] > 2.0 * told["new"]["harvested_node_h"] > 0.0


def test_a_journal_without_decisions_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal.db"
    Journal.open(path, clock=lambda: T0).close()
    assert main(["policy", "test", *write_policies(tmp_path), "--journal", str(path)]) == 8
    assert "BFT-1549" in capsys.readouterr().err
