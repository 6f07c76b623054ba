"""What is kept of reported metrics, a trial's parameters, and an Optuna objective's view."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bftrainer.batch import process
from bftrainer.elastic import params
from bftrainer.elastic.hooks import optuna
from bftrainer.elastic.process import control
from bftrainer.elastic.process import reports as reporting
from bftrainer.elastic.process.reports import Reports
from bftrainer.fleet.wire.endpoint import AgentConfig
from bftrainer.fleet.wire.keys import generate_pair, save_pair
from bftrainer.fleet.wire.messages import WorkerSaid
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import MAX_REPORTS, Report, Reported, to_body
from bftrainer.model.trainer import Mark
from tests.support.pruned import TrialPruned
from tests.support.waiting import wait_for
from trainers.agent.link import DaemonLink
from trainers.agent.pacer import EVERY_S, Pacer
from trainers.agent.team import Gathered
from trainers.command.conversation import parse_line, value_in

CHOSEN = {"lr": 0.1, "layers": 3, "act": "relu", "bias": True}


def at(samples: int, value: float = 0.0, *, epoch: int = 0) -> Report:
    return Report(value=value, samples=samples, epoch=epoch)


def test_a_report_replaces_the_one_at_its_place_and_all_after_it() -> None:
    reports = Reports()
    for one in (at(10), at(20), at(30), at(20, 1.0)):
        reports.add(one)
    assert reports.kept == (at(10), at(20, 1.0))
    for one in (at(0, epoch=2), at(0, epoch=1)):  # a program that counts epochs alone
        reports = Reports()
        reports.add(at(0, epoch=1))
        reports.add(one)
        assert reports.kept[-1] == one
        assert len(reports.kept) == one.epoch


def test_the_newest_are_kept_and_come_back() -> None:
    reports, others = Reports(), Reports()
    for n in range(MAX_REPORTS + 5):
        reports.add(at(n, -n / 3))
    assert [r.samples for r in reports.kept] == list(range(5, MAX_REPORTS + 5))
    others.load_state_dict(json.loads(json.dumps(reports.state_dict())))
    assert others.kept == reports.kept
    others.load_state_dict(reporting.NO_REPORTS)
    assert others.kept == ()


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> optuna.Trial:
    monkeypatch.setenv("BFT_PARAMETERS", json.dumps(CHOSEN))
    monkeypatch.setenv("BFT_TRIAL", "17")
    monkeypatch.setattr(control, "_current", [])
    return optuna.trial()


@pytest.mark.usefixtures("trial")
def test_parameters_are_read_and_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = params()
    assert found == CHOSEN
    with pytest.raises(TypeError):
        found["lr"] = 0.2
    monkeypatch.delenv("BFT_PARAMETERS")
    assert isinstance(params(), Mapping)
    assert params().get("lr", 0.3) == 0.3


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"lr": }', "[" * 100_000])
def test_what_are_no_parameters_is_said(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BFT_PARAMETERS", text)
    with pytest.raises(ElasticError) as refused:
        params()
    assert refused.value.code == "BFT-1612"


def test_an_objective_gets_what_the_study_chose(trial: optuna.Trial) -> None:
    assert trial.number == 17
    assert trial.params == CHOSEN
    assert trial.suggest_float("lr", 1e-5, 1.0, log=True) == 0.1
    assert repr(trial.suggest_float("layers", 1, 5)) == "3.0"
    assert repr(trial.suggest_int("layers", 1, 5, step=2)) == "3"
    assert trial.suggest_categorical("act", ["relu", "tanh"]) == "relu"
    assert trial.suggest_categorical("bias", (1, 0, True)) is True
    assert not trial.should_prune()


def objective(trial: Any) -> float:
    """Return a value as objectives do, from all kinds of parameters."""
    rate = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    width = trial.suggest_int("width", 8, 64, step=8)
    power = {"one": 1, "two": 2}[trial.suggest_categorical("power", ["one", "two"])]
    value = 1.0
    for step in range(3):
        value *= rate * width**power
        trial.report(value, step)
        if trial.should_prune():
            raise AssertionError
    return value


def test_an_objective_comes_to_the_same_with_optuna_s_trials_and_with_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs: Any = pytest.importorskip("optuna")
    theirs.logging.set_verbosity(theirs.logging.ERROR)
    sampler, pruner = theirs.samplers.RandomSampler(seed=3), theirs.pruners.NopPruner()
    study = theirs.create_study(sampler=sampler, pruner=pruner)
    study.optimize(objective, n_trials=5)
    for one in study.trials:
        monkeypatch.setenv("BFT_PARAMETERS", json.dumps(one.params))
        monkeypatch.setenv("BFT_TRIAL", str(one.number))
        ours = optuna.trial()
        assert objective(ours) == one.value
        assert (ours.number, ours.params) == (one.number, one.params)


def test_what_the_study_does_not_have_is_refused_by_name(trial: optuna.Trial) -> None:
    for ask in (trial.suggest_float, trial.suggest_int):
        with pytest.raises(ElasticError, match=r"'momentum'.*: lr, layers, act, bias") as refused:
            ask("momentum", 0, 1)
        assert refused.value.code == "BFT-1613"
    with pytest.raises(ElasticError, match=r"'relu' for 'act'") as refused:
        trial.suggest_categorical("act", ["tanh"])
    assert refused.value.code == "BFT-1613"


def test_a_program_s_report_is_a_line_that_its_keeper_reads(
    trial: optuna.Trial, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial.report(0.5, 3)
    assert capsys.readouterr().out == "", "by hand nobody reads it"
    monkeypatch.setenv("BFT_CONTROL_FILE", "/dev/null")
    trial.report(1.25e-7, 4)
    reporting.report(-2)
    first, second = capsys.readouterr().out.splitlines()
    before = Mark(step=1, samples=2, epoch=3)
    assert parse_line(first, before) == Mark(step=1, samples=2, epoch=5), "steps count from 0"
    assert parse_line(second, before) == before
    assert [float(value_in(line) or "") for line in (first, second)] == [1.25e-7, -2.0]
    with pytest.raises(ElasticError, match="BFT-1611"):
        trial.report(float("nan"), 5)


@pytest.mark.usefixtures("trial")
def test_what_an_objective_returns_is_its_last_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BFT_CONTROL_FILE", "/dev/null")
    monkeypatch.setenv("BFT_EPOCHS", "9")

    def reporting_too(one: optuna.Trial) -> float:
        one.report(0.5, 3)
        return 0.25

    optuna.run(reporting_too)
    optuna.run(lambda one: one.suggest_float("lr", 0.0, 1.0))
    assert capsys.readouterr().out.splitlines() == [
        *("BFT epoch=4 value=0.5", "BFT epoch=9 value=0.25", "BFT epoch=9 value=0.1"),
    ]
    with pytest.raises(ElasticError, match="BFT-1611"):
        optuna.run(lambda _: None)
    monkeypatch.delenv("BFT_EPOCHS")
    optuna.run(reporting_too)
    assert capsys.readouterr().out.splitlines()[-1] == "BFT epoch=4 value=0.25"


@pytest.mark.usefixtures("trial")
@pytest.mark.parametrize(
    ("first", "places"), [(0, [1, 2, 3, 3]), (1, [2, 3, 3, 3]), (np.int64(0), [1, 2, 3, 3])]
)
def test_an_objective_s_steps_end_at_its_budget(
    first: int,
    places: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BFT_CONTROL_FILE", "/dev/null")
    monkeypatch.setenv("BFT_EPOCHS", "3")

    def counting(one: optuna.Trial) -> float:
        for step in range(3):
            one.report(step, first + step)
        return 7.0

    optuna.run(counting)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"BFT epoch={place} value={value!r}"
        for place, value in zip(places, (0.0, 1.0, 2.0, 7.0), strict=True)
    ]
    assert (parse_line(lines[-1], Mark()), value_in(lines[-1])) == (
        Mark(epoch=3),
        "7.0",
    )


def test_an_objective_keeps_attributes_and_is_told_what_there_is_not(
    trial: optuna.Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.set_user_attr("epochs", 3)
    trial.set_system_attr("pid", 4)
    trial.user_attrs["other"] = 1  # a copy, as Optuna's
    assert (trial.user_attrs, trial.system_attrs) == ({"epochs": 3}, {"pid": 4})
    assert trial.datetime_start.timestamp() > 0
    assert trial.suggest_loguniform("lr", 1e-5, 1.0) == trial.suggest_uniform("lr", 0.0, 1.0)
    assert trial.study.study_name == ""
    monkeypatch.setenv("BFT_STUDY", "digits-1a2b3c")
    assert trial.study.study_name == "digits-1a2b3c"
    with pytest.raises(AttributeError, match=r"The study .* has no 'direction'\. docs/reference"):
        str(trial.study.direction)
    with pytest.raises(AttributeError, match=r"The trial .* has no 'distributions'\. docs/ref"):
        str(trial.distributions)
    assert not hasattr(trial, "storage")


def test_what_is_said_to_be_there_is_optuna_s(trial: optuna.Trial) -> None:
    theirs: Any = pytest.importorskip("optuna")
    ours = {name for name in dir(trial) if not name.startswith("_")}
    before = {"set_system_attr", "system_attrs", "study", "last_step"}
    assert ours - before <= set(dir(theirs.Trial))


class TooWide(TrialPruned):
    """A user's own."""


@pytest.mark.usefixtures("trial")
@pytest.mark.parametrize("kind", [TrialPruned, TooWide])
def test_an_objective_may_end_its_trial(
    kind: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("BFT_CONTROL_FILE", "/dev/null")
    monkeypatch.setenv("BFT_EPOCHS", "9")

    def pruned(one: optuna.Trial) -> float:
        one.report(0.5, 1)
        raise kind("the loss is NaN")

    optuna.run(pruned)
    assert capsys.readouterr().out == "BFT epoch=2 value=0.5\n"
    assert "TrialPruned the loss is NaN" in caplog.text
    theirs: Any = pytest.importorskip("optuna")

    def infeasible(_: optuna.Trial) -> float:
        raise theirs.TrialPruned

    optuna.run(infeasible)
    with pytest.raises(ZeroDivisionError):
        optuna.run(lambda _: 1 / 0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("BFT value=0.5", "0.5"),
        ("BFT step=8 value=-1e3 samples=70", "-1e3"),
        ("BFT value=nan", "nan"),  # whose progress counts, and which is refused by name
        ("BFT value=epoch=7", "epoch=7"),
        ("BFT step=8", None),
    ],
)
def test_values_in_lines(line: str, value: str | None) -> None:
    place = parse_line(line, Mark(epoch=1))
    assert place is not None
    assert place.epoch == 1
    assert value_in(line) == value


def test_a_node_s_reports_are_those_of_its_first_worker() -> None:
    node, body = Gathered(2), {"type": "Reported", "generation": 1, "reports": []}
    assert node.said(1, body) is None
    assert node.said(0, body) == body


def test_without_a_daemon_an_agent_holds_back_the_newest_reports_alone(tmp_path: Path) -> None:
    def said(worker_id: str, kind: str, **more: int) -> WorkerSaid:
        return WorkerSaid(worker_id=worker_id, body={"type": kind, **more})

    pair = generate_pair()
    save_pair(pair, tmp_path / "agent.key")
    config = AgentConfig(
        pilot_id="p1", node="n1", daemon_endpoint="tcp://127.0.0.1:9",
        daemon_public_key=pair.public, key_file=tmp_path / "agent.key", state_dir=tmp_path,
    )  # fmt: skip

    async def held_back() -> list[Any]:
        made = DaemonLink(
            config, pair, hello=lambda: None, worker_ids=list, ends=list,  # type: ignore[arg-type,return-value]
            on_order=lambda _: None, on_expired=lambda _: None, on_down=lambda: None,
        )  # fmt: skip
        for one in (
            said("w1", "Reported", generation=1), said("w1", "Saved"),
            said("w2", "Reported", generation=2), said("w1", "Reported", generation=3),
            said("w1", "Saved", step=2),
        ):  # fmt: skip
            made.report(one)
        made._connection.close()
        return made._held_back

    assert asyncio.run(held_back()) == [
        said("w1", "Saved"),
        said("w2", "Reported", generation=2),
        said("w1", "Reported", generation=3),
        said("w1", "Saved", step=2),
    ]


def test_an_agent_sends_a_flood_of_reports_in_few_messages_and_loses_none() -> None:
    """Until the next one is due, or all that the daemon would be told at once are new."""
    sent: list[Any] = []
    kept, now_s = Reports(), 100.0

    def said() -> WorkerSaid:
        body = to_body(Reported(generation=1, reports=kept.kept))
        return WorkerSaid(worker_id="w1", body=body)

    async def flood() -> None:
        nonlocal now_s
        pacer = Pacer(sent.append, lambda: now_s)
        for n in range(10 * MAX_REPORTS):
            kept.add(at(n))
            pacer.pass_on(said())
        assert len(sent) <= 11
        saved = WorkerSaid(worker_id="w1", body={"type": "Saved"})
        pacer.pass_on(saved)  # after all that was reported before it
        assert sent[-1] == saved
        assert {one["samples"] for m in sent[:-1] for one in m.body["reports"]} == set(range(320))
        sent.clear()
        for n in range(1000):  # at one place: each replaces the one before
            kept.add(at(319, n))
            pacer.pass_on(said())
        assert not sent
        now_s += EVERY_S
        kept.add(at(320))
        pacer.pass_on(said())
        assert sent.pop() == said()
        assert not sent
        pacer.pass_on(said())
        assert pacer.take() == [said()]
        pacer.pass_on(said())
        await asyncio.to_thread(wait_for, lambda: sent, what="what was held back is sent")

    asyncio.run(flood())


def test_reading_parameters_imports_no_library() -> None:
    code = (
        "import sys\nfrom bftrainer import elastic\nfrom bftrainer.elastic.hooks import optuna\n"
        "elastic.params(), elastic.report, optuna.trial().number\n"
        "print(sorted({'torch', 'numpy', 'pydantic'} & sys.modules.keys()))\n"
        "print([n for n in sys.modules if n.partition('.')[0] == 'optuna'])"
    )
    done = process.run((sys.executable, "-c", code), timeout_s=60)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"], done
