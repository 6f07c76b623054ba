"""Figures that do not depend on which trainers ran, by hand, beside U, which does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.traces.fragments import Fragments, make_fragments
from bftrainer.cli.main import main
from bftrainer.lab.simulator.metrics import (
    WHICH_FIGURE,
    Metrics,
    makespan_s,
    measure,
    reference_node_h,
    reference_rate,
)
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.whatif.replays import (
    StretchOutcome,
    point,
    samples_per_idle_node,
    work_per_idle_node,
)
from bftrainer.lab.workloads import Submission
from bftrainer.lab.yesterday import figures
from bftrainer.model.errors import ExitCode
from bftrainer.site.policy import load_policy_file
from milp.problem import Curve

Output = pytest.CaptureFixture[str]
FAST = Curve(sizes=(1, 2), samples_per_s=(100.0, 150.0))
SLOW = Curve(sizes=(1, 2), samples_per_s=(10.0, 20.0))


def _trial(name: str, curve: Curve, samples: float = 1e9, submit_s: float = 0.0) -> Submission:
    return Submission(
        submit_s=submit_s, name=name, n_min=1, n_max=2, samples=samples, curve=curve,
        rescale_up_s=0.0, rescale_down_s=0.0,
    )  # fmt: skip


def _nodes(count: int, end_s: float) -> Fragments:
    return make_fragments(
        names=[f"n{k}" for k in range(count)], node=range(count), start_s=[0.0] * count,
        end_s=[end_s] * count, span_s=(0.0, end_s),
    )  # fmt: skip


def _played(*trials: Submission, nodes: int = 1, p_jmax: int = 1) -> Metrics:
    return play(_nodes(nodes, 7200.0), trials, Choices(p_jmax=p_jmax))[1]


def test_an_hour_of_one_node_is_one_node_hour_whatever_it_trains() -> None:
    assert reference_node_h([(FAST, 360_000.0)]) == pytest.approx(1.0)
    assert reference_node_h([(SLOW, 36_000.0)]) == pytest.approx(1.0)
    # An hour on two nodes: one and a half, and two, of what one node makes.
    assert reference_node_h([(FAST, 540_000.0), (SLOW, 72_000.0)]) == pytest.approx(1.5 + 2.0)
    assert reference_node_h([(FAST, 0.0)]) == 0.0
    assert reference_node_h([(FAST, -36_000.0)]) == pytest.approx(-0.1)  # a rescale cost more


def test_a_curve_that_begins_at_a_larger_size_has_its_share_at_the_reference() -> None:
    assert reference_rate(Curve(sizes=(4, 8), samples_per_s=(400.0, 500.0))) == 100.0
    assert reference_rate(Curve(sizes=(1, 4), samples_per_s=(0.0, 80.0))) == 20.0
    with pytest.raises(ValueError, match="0 everywhere"):
        reference_rate(Curve(sizes=(1, 4), samples_per_s=(0.0, 0.0)))


def test_which_trainer_runs_changes_u_but_not_the_work() -> None:
    """One node for two hours, one place: who comes first trains, the other never does.

    U is 1 both times, though the fast network makes ten times as many samples.
    """
    slow, fast = _trial("slow", SLOW), _trial("fast", FAST)
    first, second = _played(slow, fast), _played(fast, slow)
    assert first.a_e == pytest.approx(72_000.0)
    assert second.a_e == pytest.approx(720_000.0)
    assert first.utilization == second.utilization == pytest.approx(1.0)
    assert first.reference_node_h == second.reference_node_h == pytest.approx(2.0)


def test_the_size_that_a_rigid_policy_asks_for_does_not_change_the_unit() -> None:
    """A job of two nodes makes one and a half times what FAST makes on one, for two hours."""
    choices = Choices(policy="no-rescale", p_jmax=1, job_nodes=2)
    _, found = play(_nodes(2, 7200.0), [_trial("t", FAST)], choices)
    assert found.reference_node_h == pytest.approx(3.0)


def test_the_makespan_counts_those_that_came_and_ended() -> None:
    trials = [_trial("a", FAST, 100_000.0), _trial("b", FAST, 100_000.0)]
    outcome, found = play(_nodes(2, 7200.0), trials, Choices(p_jmax=2))
    assert found.completed == 0  # seen at the next event, and none comes
    assert found.makespan_s is None
    a, b = outcome.trainers
    a.finished_s, b.finished_s = 1000.0, 1600.0
    assert makespan_s(outcome.trainers, 100.0, 7200.0) == 1500.0
    assert measure(outcome).makespan_s == 1600.0
    b.finished_s = None
    assert makespan_s(outcome.trainers, 100.0, 7200.0) is None
    b.record = replace(b.record, submitted_s=7200.0)  # came too late to count
    assert makespan_s(outcome.trainers, 100.0, 7200.0) == 900.0


def test_whatif_tells_work_and_samples_of_each_idle_hour() -> None:
    played = [
        StretchOutcome(
            seconds=3600.0, offered_node_s=7200.0, harvested_node_s=7000.0, samples=samples,
            reference_node_h=work_node_h, completed=1,
        )
        for samples, work_node_h in ((100.0, 1.0), (500.0, 4.0))
    ]  # fmt: skip
    assert point(work_per_idle_node, played) == pytest.approx(5.0 / 4.0)
    assert point(samples_per_idle_node, played) == pytest.approx(600.0 / 4.0)


def test_whatif_prints_them(tmp_path: Path, capsys: Output) -> None:
    trace = tmp_path / "idle.csv"
    trace.write_text("node,start_s,end_s\na,0,7200\nb,600,5000\n")
    argv = ["whatif", "--trace", str(trace), "--t-fwd", "120", "--p-jmax", "2"]
    argv += ["--hold-down", "0", "--processes", "1"]
    assert main([*argv, "--json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    (told,) = document["expected"]
    # ShuffleNet on one node of Table 2: 2,800 samples a second.
    work = told["samples_per_day"]["value"] / 2800.0 / 3600.0
    assert told["reference_node_h_per_day"]["value"] == pytest.approx(work)
    assert told["completed"] >= 0
    assert main(argv) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "WORK DONE PER DAY" in shown
    assert WHICH_FIGURE in shown


def test_a_policy_is_tested_by_them(tmp_path: Path) -> None:
    """A node for two hours and one trainer of ten minutes."""
    file = tmp_path / "policy.yaml"
    file.write_text("reserve_nodes_per_type: 0\n")
    file.chmod(0o600)
    trial = replace(_trial("t", SLOW, 6000.0), n_max=1)
    told = figures(_nodes(1, 7200.0), [trial], load_policy_file(file).policy)  # type: ignore[arg-type]
    assert told.samples == pytest.approx(6000.0)
    assert told.reference_node_h == pytest.approx(1.0 / 6.0)
    assert told.finished == 1
    assert told.makespan_s is not None
    assert 600.0 < told.makespan_s < 700.0  # the start takes 25.5 s


def test_simulate_tells_which_figure_to_use(capsys: Output) -> None:
    argv = ["simulate", "--hours", "1", "--nodes", "0:64", "--policy", "milp,equal-share"]
    assert main(argv) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "work done (reference node-hours)" in shown
    assert "\nmakespan " in shown
    assert WHICH_FIGURE in shown
