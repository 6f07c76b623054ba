"""Whoever sets T_fwd is told when a rescale costs more than that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.traces.fragments import make_fragments
from bftrainer.cli.main import main
from bftrainer.decide.horizon import findings, longest_rescale_s, sentence
from bftrainer.lab.simulator.physical import MEASURED, PhysicalCosts, constant
from bftrainer.lab.whatif import Assumptions, study
from bftrainer.model.errors import ExitCode
from bftrainer.model.site import Weight
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord, TrainerSpec, TrainerState

Output = pytest.CaptureFixture[str]
CODE = "BFT-2119"
DEAR = replace(MEASURED, pause_up=constant(121.0))


def test_a_rescale_beyond_t_fwd_is_told_with_cause_and_next_step() -> None:
    assert findings(None, 120.0, whose="measured") == ()
    assert findings(120.0, 120.0, whose="measured") == ()
    (found,) = findings(300.0, 120.0, whose="measured")
    assert (found.code, found.weight, found.setting) == (CODE, Weight.LOSS, "t_fwd_s 120")
    assert "look 120 s ahead" in found.cost
    assert "measured: 300 s" in found.cost
    assert "whatif --cost pause_up=300 --cost pause_down=300" in found.remedy
    assert sentence(found).startswith("BFT-2119 t_fwd_s 120: Decisions look")


def test_the_longest_rescale_is_that_of_a_trainer_that_has_not_ended() -> None:
    def with_costs(state: TrainerState, up_s: float | None, down_s: float | None) -> TrainerRecord:
        costs = MeasuredCosts(rescale_up_s=up_s, rescale_down_s=down_s)
        spec = TrainerSpec(name="n", user="ann", script="/t.py")
        return TrainerRecord(trainer_id="t", spec=spec, state=state, submitted_s=0.0, costs=costs)

    assert longest_rescale_s([]) is None
    assert longest_rescale_s([with_costs(TrainerState.QUEUED, None, None)]) is None
    trainers = [
        with_costs(TrainerState.RUNNING, 5.0, None),
        with_costs(TrainerState.PARKED, 1.0, 7.0),
        with_costs(TrainerState.FINISHED, 900.0, 900.0),
    ]
    assert longest_rescale_s(trainers) == 7.0


@pytest.mark.parametrize(("costs", "is_told"), [(MEASURED, False), (DEAR, True)])
def test_whatif_warns_of_the_t_fwd_that_it_recommends(costs: PhysicalCosts, is_told: bool) -> None:
    given = Assumptions(t_fwd_s=(120.0,), p_jmax=(1,), hold_down_s=(0.0,), costs=costs)
    trace = make_fragments(names=["n"], node=[0], start_s=[0.0], end_s=[3600.0])
    warnings = study(trace, given).warnings
    assert [CODE in one for one in warnings] == [True] * is_told
    assert all("assumed: 121 s" in one for one in warnings)


def test_policy_check_notices_it_and_finds_no_mistake(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("t_fwd_s: 60\n")
    file.chmod(0o600)
    assert main(["policy", "check", str(file), "--rescale", "61"]) == ExitCode.OK
    shown = capsys.readouterr()
    assert shown.out == f"{file}: ok\n"
    assert shown.err.startswith(f"notice: {CODE} t_fwd_s 60: ")
    assert "as given: 61 s" in shown.err
    assert main(["policy", "check", str(file), "--rescale", "61", "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    assert [one["code"] for one in told["notices"]] == [CODE]
    assert main(["policy", "check", str(file), "--rescale", "60", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["notices"] == []
