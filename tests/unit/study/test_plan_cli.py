"""``bftrainer study plan``: tables, the document, and every mistake by its code."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.trainer import (
    MeasuredCosts,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from bftrainer.study.directory import new_directory, write_directory
from bftrainer.study.document import read_study
from bftrainer.study.plan.document import Carried
from bftrainer.study.verbs import plan as plan_module
from bftrainer.study.verbs.plan import keep_plan, parse_price, parse_time, plan_for, with_plan
from bftrainer.study.verbs.run import base_spec
from tests.support import pages

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "studies.md"
Output = pytest.CaptureFixture[str]
PRICED = ("--deadline", "20m", "--price", "12.24/h", "--gpus-per-instance", "4")


def study(directory: Path, **keys: Any) -> str:
    path = directory / "resnet.yaml"
    body = {
        "parameters": {"lr": {"type": "float", "low": 0.001, "high": 0.3, "log": True}},
        "rule": {"name": "sha", "trials": 27, "least": 1, "most": 27, "eta": 3},
        "nodes": "1:32",
        "unit_s": {"1": 103, "2": 52, "4": 26, "8": 20, "16": 18},
        **keys,
    }
    path.write_text(json.dumps({k: v for k, v in body.items() if v is not None}))
    return str(path)


def refused(capsys: Output, *words: str) -> str:
    assert main(["study", "plan", *words]) != ExitCode.OK
    return capsys.readouterr().err


def test_the_table_has_every_stage_and_planner(tmp_path: Path, capsys: Output) -> None:
    argv = ["study", "plan", study(tmp_path), *PRICED, "--init", "15s", "--scale", "15s"]
    assert main(argv) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["STAGE", "TRIALS", "EPOCHS", "GPUS/TRIAL"]
    assert [line.split()[1] for line in lines[1:5]] == ["27", "9", "3", "1"]
    assert lines[5].startswith("total")
    planners = {line.split()[0]: line.split() for line in lines if line}
    assert planners["exact"][3] == "0.0%"
    assert float(planners["static"][2]) > float(planners["exact"][2])


def test_the_document(tmp_path: Path, capsys: Output) -> None:
    assert main(["study", "plan", study(tmp_path), *PRICED, "--spread", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "bftrainer/study-plan/1"
    assert (found["study"], found["deadline_s"], found["in_time"]) == ("resnet", 1200.0, 1.0)
    assert found["bound"] == pytest.approx(found["cost"]["mean"])
    assert found["time_s"]["mean"] <= 1200.0
    assert [stage["budget"] for stage in found["stages"]] == [1, 3, 9, 27]
    assert all(stage["instances"] == -(-stage["gpus"] // 4) for stage in found["stages"])


def test_a_profile_is_in_samples(tmp_path: Path, capsys: Output) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"sizes": [1, 2], "samples_per_s": [100.0, 200.0]}))
    argv = [study(tmp_path, unit_s=None), *PRICED, "--profile", str(profile)]
    assert "error BFT-1644: Budgets are in epochs" in refused(capsys, *argv)
    argv += ["--epoch-samples", "5200", "--json"]
    assert main(["study", "plan", *argv]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["scaling"]["unit_s"] == [52.0, 26.0]
    profile.write_text(json.dumps({"sizes": [1, 2], "samples_per_s": [100.0, 0.0]}))
    assert "BFT-" in refused(capsys, *argv)


def trainer(**fields: Any) -> TrainerRecord:
    spec = TrainerSpec(name="a", user="u", script="/a.py", epochs=4)
    return TrainerRecord(
        trainer_id="t3", spec=spec, state=TrainerState.RUNNING, submitted_s=0.0, **fields
    )


def test_a_measured_trainer_is_a_profile(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = MeasuredCosts(samples_per_s_by_size=((1, 100.0), (2, 180.0)))
    progress = TrainerProgress(total=4 * 3600)
    record = trainer(costs=costs, progress=progress)
    client = SimpleNamespace(trainer=lambda _: SimpleNamespace(record=record))
    monkeypatch.setattr(plan_module, "connect", lambda _: client)
    argv = [study(tmp_path, unit_s=None), *PRICED, "--trainer", "t3", "--instances", "16"]
    assert main(["study", "plan", *argv, "--deadline", "2h", "--json"]) == ExitCode.OK
    scaling = json.loads(capsys.readouterr().out)["scaling"]
    assert (scaling["gpus"], scaling["unit_s"]) == ([1, 2], [36.0, 20.0])
    record = trainer()
    assert "error BFT-1643: Nothing is measured of t3 yet." in refused(capsys, *argv)


def test_an_impossible_deadline_names_the_fastest_plan(tmp_path: Path, capsys: Output) -> None:
    argv = [study(tmp_path), "--deadline", "5m", "--price", "12.24"]
    said = refused(capsys, *argv)
    assert (
        "error BFT-1641: No plan with at most 64 instances ends within 5m00s: the fastest" in said
    )
    assert "costs" in said


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"unit_s": None}, "BFT-1643"),
        ({"unit_s": {"one": 3.0}}, "BFT-1644"),
        ({"unit_s": {"1": -3.0}}, "BFT-1644"),
        ({"rule": {"name": "asha", "trials": 27, "least": 1, "most": 27, "eta": 3}}, "BFT-1645"),
        ({"rule": {"name": "sha", "trials": 10**9, "least": 1, "most": 9, "eta": 3}}, "BFT-1622"),
    ],
)
def test_studies_that_cannot_be_planned(
    keys: dict[str, Any], code: str, tmp_path: Path, capsys: Output
) -> None:
    assert f"error {code}: " in refused(capsys, study(tmp_path, **keys), *PRICED)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("45s", 45.0), ("20m", 1200.0), ("1h30m", 5400.0), ("1.5h", 5400.0),
     ("2d", 172_800.0)],
)  # fmt: skip
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "12", "5x", "-5m", "m", "1m1h", "٣m", "1e3"])
def test_no_times(text: str) -> None:
    with pytest.raises(UsageError, match="BFT-1642"):
        parse_time(text)


def test_prices() -> None:
    assert parse_price("12.24/h") == parse_price("12.24") == 12.24
    assert parse_price("0.2/min") == pytest.approx(12.0)
    for text in ("", "$3", "3/d", "free", "-1/h", "0/h"):
        with pytest.raises(UsageError, match="BFT-1642"):
            parse_price(text)


def test_the_page_shows_what_is_printed(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    _, _, rest = page.partition("```yaml\n# resnet.yaml\n")
    (tmp_path / "resnet.yaml").write_text(rest.partition("```")[0])
    monkeypatch.chdir(tmp_path)
    shown = next(one for one in pages.commands(page) if " study plan " in one.text)
    assert main(shown.text.split()[1:]) == ExitCode.OK
    assert len(shown.shown) > 10
    assert tuple(capsys.readouterr().out.splitlines()) == shown.shown  # nothing in it is measured


# ---- study run --plan ------------------------------------------------------------------


@pytest.fixture
def in_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    return tmp_path


def write_plan(home: Path, capsys: Output, **keys: Any) -> None:
    assert main(["study", "plan", study(home, **keys), *PRICED, "--json"]) == ExitCode.OK
    (home / "plan.json").write_text(capsys.readouterr().out)


def test_a_dry_run_shows_the_plan(in_home: Path, capsys: Output) -> None:
    write_plan(in_home, capsys)
    argv = ["study", "run", "--dry-run", "--plan", "plan.json", "resnet.yaml", "train.py"]
    assert main(argv) == ExitCode.OK
    said = capsys.readouterr().out
    assert "trials 27, 27 at once, nodes 4 each, 28s" in said
    assert "nodes        4 to 4 for a trial" in said
    assert not (in_home / "resnet.study").exists()


def test_a_plan_keeps_to_a_set_of_sizes(in_home: Path, capsys: Output) -> None:
    path = study(in_home, nodes="1,5,13")  # 4, 8 and 16 were measured
    assert main(["study", "plan", path, *PRICED]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[3] for line in lines[1:5]} <= {"1", "5", "13"}


def test_plans_for_other_studies_are_refused(in_home: Path, capsys: Output) -> None:
    write_plan(in_home, capsys, rule={"name": "sha", "trials": 9, "least": 1, "most": 9, "eta": 3})
    study(in_home)
    argv = ["study", "run", "--dry-run", "--plan", "plan.json", "resnet.yaml", "train.py"]
    assert main(argv) == ExitCode.VALIDATION_FAILED
    assert "error BFT-1647: " in capsys.readouterr().err
    (in_home / "plan.json").write_text('{"schema": "bftrainer/study/1"}')
    assert main(argv) == ExitCode.USAGE
    assert "error BFT-1646: plan.json is not a plan: " in capsys.readouterr().err
    (in_home / "plan.json").unlink()
    assert main(argv) == ExitCode.USAGE
    assert "error BFT-1646: plan.json is not a plan: " in capsys.readouterr().err


def test_a_study_goes_on_with_its_plan(in_home: Path, capsys: Output) -> None:
    write_plan(in_home, capsys)
    document = read_study(in_home / "resnet.yaml")
    kept = new_directory(in_home / "a.study", document, base_spec(document, "train.py", ()))
    rule = document.rule_with()
    assert with_plan(kept)(rule) is rule
    write_directory(kept)
    plan = plan_for(kept, in_home / "plan.json")
    keep_plan(kept, plan)
    assert with_plan(kept)(rule) == Carried(rule=rule, plan=plan)
