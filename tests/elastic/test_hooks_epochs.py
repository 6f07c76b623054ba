"""The end of an epoch under a framework: the same on every worker, whoever had samples last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bftrainer.ground.protocol import Interrupted
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess
from tests.elastic.frameworks import FRAMEWORKS, Framework, assert_same, natively, start, template

__all__ = ["template"]

pytestmark = pytest.mark.long  # importing the library takes 6 s of processor time

EPOCHS = 3


def workers(directory: Path, kind: str) -> list[list[journal.Entry]]:
    """Return what each worker that was in a generation noted, the first rank 0 first."""
    first = {
        e["pid"]: (e["generation"], e["rank"]) for e in journal.entries(directory, "entered")[::-1]
    }
    noted = journal.entries(directory, kind)
    return [[e for e in noted if e["pid"] == pid] for pid in sorted(first, key=first.__getitem__)]


def steps(noted: list[list[journal.Entry]]) -> list[list[int]]:
    return [[e["step"] for e in entries] for entries in noted]


def interrupted(c: Controller, ids: list[str]) -> list[int]:
    """Wait until all are interrupted; return the steps that each has committed."""
    c.until(lambda: all(c.workers[i].all(Interrupted) for i in ids), "all interrupted")
    return [c.workers[i].all(Interrupted)[0].step for i in ids]


def assert_alike(directory: Path, framework: Framework, count: int, length: int) -> None:
    """Each of ``count`` workers that were there throughout ended each epoch as rank 0 did."""
    ends = [length * epoch for epoch in range(1, EPOCHS + 1)]
    assert steps(workers(directory, "epoch end")) == [ends] * count
    # The Trainer of transformers evaluates after its loop; there only rank 0 goes on.
    others = ends[:-1] if framework.module == "transformers" else ends
    assert steps(workers(directory, "evaluate")) == [ends, *[others] * (count - 1)]
    saves = journal.entries(directory, "save")
    assert {(e["rank"], e["step"]) for e in saves} == {(0, step) for step in ends}
    assert len(saves) == EPOCHS


@pytest.mark.parametrize(
    ("count", "length", "settings"),
    [
        pytest.param(2, 3, {"samples": 9}, id="none for rank 1"),
        pytest.param(2, 1, {"samples": 1}, id="never any for rank 1"),
        pytest.param(3, 3, {"samples": 9}, id="none for two of three", marks=pytest.mark.long),
        pytest.param(3, 3, {"samples": 10}, id="none for one of three", marks=pytest.mark.long),
        pytest.param(
            2,
            3,
            {"samples": 9, "batch": 2, "accumulate": 2},
            id="accumulating",
            marks=pytest.mark.long,
        ),
        pytest.param(2, 2, {"samples": 9, "drop_last": True}, id="dropped", marks=pytest.mark.long),
    ],
)
def test_an_epoch_ends_alike_on_all_workers(
    tmp_path: Path,
    template: TemplateProcess,
    framework: Framework,
    count: int,
    length: int,
    settings: dict[str, Any],
) -> None:
    settings = {"batch": 4, "evaluate": True, **settings}
    with Controller(tmp_path, template) as c:
        ids = start(c, framework, count=count, **settings)
        # Alone, transformers takes the sum of accumulated means: see
        # docs/howto/train-huggingface-lightning.md.
        wanted = natively(template, framework, **{**settings, "batch": 4, "accumulate": 1})
        c.form(ids, new=ids)
        c.finished()
    samples = 8 if settings.get("drop_last") else settings["samples"]
    assert_same(tmp_path, wanted, samples=samples, atol=1e-5)
    assert_alike(tmp_path, framework, count, length)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.long)])
def test_an_epoch_that_the_others_have_ended_is_not_ended_again(
    tmp_path: Path, template: TemplateProcess, framework: Framework, rank: int
) -> None:
    settings = {"samples": 9, "batch": 4, "evaluate": True}
    with Controller(tmp_path, template) as c:
        # The last step of the epoch before the last one: for this rank it fails.
        ids = start(c, framework, **settings, fail_at=[6, rank, 1])
        wanted = natively(template, framework, **settings)
        c.form(ids, new=ids)
        assert interrupted(c, [ids[1 - rank], ids[rank]]) == [6, 5]
        c.form(ids, abandon=True)
        c.finished()
    assert_same(tmp_path, wanted, samples=9, atol=1e-5)
    assert [len(ends) for ends in workers(tmp_path, "epoch end")] == [EPOCHS] * 2


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_worker_is_lost_in_the_last_step_of_an_epoch(
    tmp_path: Path, template: TemplateProcess, framework: Framework, rank: int
) -> None:
    settings = {"samples": 9, "batch": 4, "evaluate": True}
    with Controller(tmp_path, template) as c:
        ids = start(c, framework, **settings, holds=[[6, 2]])
        wanted = natively(template, framework, **settings)
        c.form(ids, new=ids)
        c.trained_to(5)
        c.kill(ids[rank])
        c.until(lambda: c.workers[ids[rank]].returncode is not None, "death noticed")
        c.form([ids[1 - rank]], abandon=True)
        c.finished()
    assert_same(tmp_path, wanted, samples=9, atol=1e-5)
    assert steps(workers(tmp_path, "epoch end"))[1 - rank] == [3, 6, 9]


def test_one_that_joined_within_an_epoch_is_joined_at_its_end(
    tmp_path: Path, template: TemplateProcess, framework: Framework
) -> None:
    # 5 steps, the last of one sample. What the end of an epoch does to the framework's state
    # (here: two epochs without a better score) is the same for who joins there.
    settings = {"samples": 17, "batch": 4, "epochs": 5, "evaluate": True, "patience": 2}
    with Controller(tmp_path, template) as c:
        holds = [[2, 2], [4, 3], [5, 4]]
        ids = start(c, framework, count=3, **settings, holds=holds)
        wanted = natively(template, framework, **settings)
        assert wanted["steps"] == 15
        c.warm(ids)
        for generation, members in enumerate((ids[:1], ids[:2], ids[1:2], ids[1:])):
            if generation:
                c.trained_to(holds[generation - 1][0] - 1)
            c.form(members)
        c.finished()
    assert_same(tmp_path, wanted, samples=17, atol=1e-5)
    # The second one, and the third from the next epoch on.
    assert steps(workers(tmp_path, "epoch end"))[1:] == [[5, 10, 15], [10, 15]]


def test_all_stop_early_after_the_same_epoch(
    tmp_path: Path, template: TemplateProcess, framework: Framework
) -> None:
    # Stops in the third of five epochs: its score is never better than after the first.
    settings = {"samples": 73, "epochs": 5, "evaluate": True, "patience": 2}
    with Controller(tmp_path, template) as c:
        # In the last step of the second one.
        ids = start(c, framework, **settings, fail_at=[20, 1, 1])
        wanted = natively(template, framework, **settings)
        assert wanted["steps"] == 30
        c.form(ids, new=ids)
        assert interrupted(c, ids) == [20, 19]
        c.form(ids, abandon=True)
        c.finished()
    assert_same(tmp_path, wanted, samples=73, atol=1e-5)
    assert steps(workers(tmp_path, "epoch end"))[0] == [10, 20, 30]
    assert len(workers(tmp_path, "epoch end")[1]) == EPOCHS


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "ends"),
    [
        ({"epochs": 2}, [3, 6]),
        ({"samples": 13}, [3, 4]),
    ],
    ids=["epochs", "samples"],
)
def test_a_run_that_is_submitted_shorter_ends_there(
    tmp_path: Path,
    template: TemplateProcess,
    framework: Framework,
    asked: dict[str, int],
    ends: list[int],
) -> None:
    with Controller(tmp_path, template) as c:
        settings = json.dumps({"samples": 9, "batch": 4, "evaluate": True})
        c.begin(SCRIPTS / framework.script, [settings], count=2, **asked)
        c.finished()
    assert journal.result(tmp_path)["steps"] == ends[-1]
    assert steps(workers(tmp_path, "epoch end")) == [ends, ends]
    assert [e["step"] for e in journal.entries(tmp_path, "save")] == ends


@pytest.mark.long
def test_bitwise_the_same_with_a_worker_that_has_no_share(
    tmp_path: Path, template: TemplateProcess, framework: Framework
) -> None:
    results = []
    # 2 of 4 logical workers for each; one of them has the last sample of an epoch.
    settings = {"samples": 9, "batch": 4, "logical": 4, "dropout": 0.3, "evaluate": True}
    # The last collective of a step; there is one for the model's buffers, where it has any.
    last = 3 if framework.module == "transformers" else 2
    for count, fail_at in ((1, None), (2, [6, 1, last])):
        directory = tmp_path / f"{count}"
        directory.mkdir()
        with Controller(directory, template) as c:
            ids = start(c, framework, count=count, **settings, fail_at=fail_at)
            c.form(ids, new=ids)
            if fail_at:
                assert interrupted(c, ids) == [6, 5]
                c.form(ids, abandon=True)
            c.finished()
        results.append(journal.result(directory))
    assert results[1] == results[0]


@pytest.mark.long
def test_samples_that_do_not_count_leave_no_trace_in_running_averages(
    tmp_path: Path, template: TemplateProcess
) -> None:
    pytest.importorskip("lightning")
    with Controller(tmp_path, template) as c:
        # BatchNorm needs two samples: the last three of an epoch are one share.
        ids = start(c, FRAMEWORKS[1], samples=11, batch=4, norm=True)
        c.form(ids, new=ids)
        c.finished()
    tracked = [[e["tracked"] for e in ends] for ends in workers(tmp_path, "epoch end")]
    assert tracked == [[[3], [6], [9]], [[2], [4], [6]]]
