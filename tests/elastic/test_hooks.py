"""Trainers of transformers and Lightning, made elastic: what they do alone, at any size."""

from __future__ import annotations

import csv
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from bftrainer.elastic.checkpoints.origin_check import CONTINUE
from bftrainer.ground.protocol import (
    BY_AGENT,
    TELLS_LOSS,
    Interrupted,
    Remarked,
    Reported,
    TrainingLoss,
)
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess
from tests.elastic.frameworks import FRAMEWORKS, Framework, assert_same, natively, start, template

__all__ = ["template"]


def csv_steps(out: Path) -> dict[str, range]:
    """Return the steps whose loss each folder of Lightning's CSVLogger holds."""
    found = {}
    for path in out.glob("lightning_logs/*/metrics.csv"):
        with path.open(newline="") as lines:
            steps = [int(row["step"]) for row in csv.DictReader(lines) if row["loss"]]
        found[path.parent.name] = range(steps[0], steps[-1] + 1)
        assert steps == list(found[path.parent.name])
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.module, indirect=True)
def test_rescaled_it_trains_as_without_us(
    tmp_path: Path, template: TemplateProcess, framework: Framework
) -> None:
    samples = 73  # the last batch of an epoch has one: a second worker gets none
    with Controller(tmp_path, template) as c:
        holds = [[5, 2], [17, 3]]  # of 30 steps
        first, second = start(c, framework, samples=samples, holds=holds, evaluate=True)
        wanted = natively(template, framework, samples=samples)
        c.form([first], new=[first, second])
        c.trained_to(4)
        c.form([first, second])
        c.trained_to(16)
        c.form([second])  # the joiner stays: it logs, saves and ends the run
        c.finished()
        assert not any(worker.all(Remarked) for worker in c.workers.values())
    assert_same(tmp_path, wanted, samples=samples, atol=1e-5)
    logged = [e["step"] for e in journal.entries(tmp_path, "log")]
    assert sorted(logged) == list(range(1, 31)), "each step once, by whoever was rank 0"
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names >= framework.saved
    if framework.module == "lightning":
        files = csv_steps(tmp_path / "out")
        own = files.pop("only")
        assert files == {f"only-from-step-{len(own)}": range(len(own), 30)}


def test_a_complete_run_goes_on_where_its_script_wants_more_epochs(
    tmp_path: Path, template: TemplateProcess, framework: Framework
) -> None:
    ways = {"BFT_TEST_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", CONTINUE: "schedule-new"}
    ways[TELLS_LOSS] = BY_AGENT
    told: list[list[TrainingLoss]] = []
    for epochs in (1, 3):
        with Controller(tmp_path, template) as c:
            settings = json.dumps({"samples": 73, "epochs": epochs})
            [only] = c.begin(
                SCRIPTS / framework.script, [settings], environment=tuple(ways.items())
            )
            c.finished()
            told.append(c.workers[only].all(TrainingLoss))
        got = journal.result(tmp_path)
        assert (got["steps"], got["epoch"]) == (10 * epochs, epochs)
    counts = journal.committed_ids(tmp_path)
    assert {e: set(ids.values()) for e, ids in counts.items()} == {0: {1}, 1: {1}, 2: {1}}
    # The loss that is told is the one that the framework logged; the last batch is of one sample.
    logged, sizes = losses_logged(tmp_path), ([8] * 9 + [1]) * 3
    for begin, reports in zip((0, 10), told, strict=True):
        assert reports[-1].step == (10, 30)[begin > 0]
        for before, now in pairwise([begin, *(report.step for report in reports)]):
            [report] = [one for one in reports if one.step == now]
            total = sum(sizes[before:now])
            mean = sum(logged[k] * sizes[k] for k in range(before, now)) / total
            assert report.weight == pytest.approx(total / (now - before))
            assert report.loss == pytest.approx(mean, abs=1e-3)


def losses_logged(directory: Path) -> dict[int, float]:
    """Return the loss of each update, from 0, as transformers or Lightning's CSVLogger has it."""
    found = {e["step"] - 1: e["loss"] for e in journal.entries(directory, "log") if "loss" in e}
    for path in (directory / "out").glob("lightning_logs/*/metrics.csv"):
        with path.open(newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["loss"]]
        found |= {int(row["step"]): float(row["loss"]) for row in rows}
    return found


def test_a_counter_of_a_callback_of_the_script_is_named_once(
    tmp_path: Path, template: TemplateProcess, framework: Framework
) -> None:
    with Controller(tmp_path, template) as c:
        ids = start(c, framework, mutation="counter", samples=73)
        c.form(ids, new=ids)
        c.finished()
        remarks = [c.workers[i].all(Remarked) for i in ids]
        log = c.workers[ids[0]].log.read_text()
    assert len(remarks[0]) == 1
    assert remarks[1] == []
    [remark] = remarks[0]
    assert re.search(r"extra\.Meddling\.updates is 4 on rank 0, 5 on rank 1", remark.cause)
    assert log.count("BFT-1438") == 1
    assert journal.result(tmp_path)["steps"] == 30


@pytest.mark.long
def test_a_trial_s_rungs_come_to_what_one_go_does_and_each_epoch_s_metric_is_reported(
    tmp_path: Path, template: TemplateProcess, framework: Framework
) -> None:
    settings = {"samples": 73, "evaluate": True}
    said: list[Reported] = []
    with Controller(tmp_path, template) as c:
        for epochs in (1, 3):  # of the script's 3
            script, asked = SCRIPTS / framework.script, [json.dumps(settings)]
            ids = c.start(script, asked, count=2, epochs=epochs)
            wanted = natively(template, framework, **settings)
            c.form(ids, new=ids)
            c.finished()
            said += c.workers[ids[0]].all(Reported)
            assert not c.workers[ids[1]].all(Reported)
    assert_same(tmp_path, wanted, samples=73, atol=1e-5)
    # transformers evaluates a rung's last epoch after its checkpoint: that is said by then.
    found = {(r.epoch, r.step, r.samples) for message in said for r in message.reports}
    assert found == {(n, 10 * n, 73 * n) for n in (1, 2, 3)}
    values = [r.value for message in said for r in message.reports]
    assert all((value > 0) == (framework.module == "transformers") for value in values)


@pytest.mark.long
def test_lightning_in_a_pilot_of_slurm_leaves_signals_alone_and_has_as_many_files(
    tmp_path: Path, template: TemplateProcess
) -> None:
    """Its SLURMEnvironment would requeue the pilot at SIGUSR1; two ``save_last`` share a folder."""
    pytest.importorskip("lightning")
    slurm = {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "pilot", "SLURM_NTASKS": "1", "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NODELIST": "n1",
        "SLURM_STEP_NODELIST": "n1", "BFT_TEST_DIR": str(tmp_path), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with Controller(tmp_path, template) as c:
        holds = [[13, 2], [17, 3], [24, 4]]
        settings = {"samples": 73, "holds": holds, "evaluate": True, "last": 2}

        def started(count: int) -> list[str]:
            script, asked = SCRIPTS / "lightning_train.py", [json.dumps(settings)]
            return c.start(script, asked, count=count, environment=tuple(slurm.items()))

        a, b = started(2)
        c.form([a], new=[a, b])
        c.trained_to(12)
        c.form([a, b])
        c.trained_to(16)
        c.form([b])
        c.trained_to(23)
        c.park(saver=b)
        (d,) = started(1)
        c.form([d], new=[d])
        c.finished()
    handlers = journal.entries(tmp_path, "handlers")
    assert [one["are_default"] for one in handlers] == [True] * 3
    names = {one.name for one in (tmp_path / "out").glob("last*")}
    assert names == {"last.ckpt", "last-v1.ckpt"}
    for name in names:
        saved = torch.load(tmp_path / "out" / name, weights_only=False)
        assert saved["global_step"] == 30, "none is left behind"


@pytest.mark.long
@pytest.mark.parametrize("accumulate", [1, 2])
def test_language_models_learn_from_each_token_alike(
    tmp_path: Path, template: TemplateProcess, accumulate: int
) -> None:
    pytest.importorskip("transformers")
    framework = FRAMEWORKS[0]
    settings = {"samples": 73, "tokens": True, "batch": 8 // accumulate, "accumulate": accumulate}
    with Controller(tmp_path, template) as c:
        holds = [[5, 2], [17, 3]]  # of 30 steps
        ids = start(c, framework, count=3, holds=holds, **settings)
        wanted = natively(template, framework, **settings)
        c.form(ids[:1], new=ids)
        c.trained_to(4)
        c.form(ids)
        c.trained_to(16)
        c.form(ids[1:])
        c.finished()
    assert_same(tmp_path, wanted, samples=73, atol=1e-5)


@pytest.mark.long
def test_a_step_that_is_redone_counts_once(
    tmp_path: Path, template: TemplateProcess, framework: Framework
) -> None:
    with Controller(tmp_path, template) as c:
        passes = {"batch": 4, "accumulate": 2, "bf16": True}
        # The second worker does not see the last step of an epoch succeed.
        ids = start(c, framework, **passes, delay_s=0.05, fail_at=[10, 1, 1])
        # Alone, transformers adds up the means of two batches of such a model instead of
        # taking their mean: compared is one batch of twice the size.
        wanted = natively(template, framework, bf16=True)
        c.form(ids, new=ids)
        c.until(lambda: all(c.workers[i].all(Interrupted) for i in ids), "both interrupted")
        assert [c.workers[i].all(Interrupted)[0].step for i in ids] == [10, 9]
        c.form(ids, abandon=True)
        c.trained_to(16)
        c.kill(ids[0])
        c.until(lambda: c.workers[ids[0]].returncode is not None, "death noticed")
        c.form(ids[1:], abandon=True)
        c.finished()
    assert_same(tmp_path, wanted, samples=75, atol=2e-3)
