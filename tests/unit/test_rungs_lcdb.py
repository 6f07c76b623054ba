"""The rules on real learning curves (``scripts/bench_rungs.py``; LCDB is downloaded with pip)."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from _bench import rungs
from _bench.lcdb import ETA, DataSet, archive, data_sets
from _bench.pruners import Beside
from _bench.waiting import BenchError
from optuna.pruners import BasePruner, MedianPruner, SuccessiveHalvingPruner


def test_whole_curves_are_read_from_the_archive(tmp_path: Path) -> None:
    """Set 7 has 60 learners with all anchors and one without, set 8 too few."""
    rows = ["openmlid,learner,size_train,outer_seed,inner_seed,score_valid"]
    for name, learners in (("7", 60), ("8", 3)):
        for learner in range(learners):
            rows += [f"{name},L{learner:02},{16 << k},0,0,0.{k}5" for k in range(5)]
    rows.append("7,partial,16,0,0,0.9")
    text = "\n".join(rows).encode()
    with tarfile.open(tmp_path / "lcdb.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("lcdb-0.1.0/lcdb/database-accuracy.csv")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    (data,) = data_sets(archive(tmp_path / "lcdb.tar.gz"))
    assert (data.name, data.most, len(data.errors)) == ("7", 16, 60)
    assert [units for units, _ in data.curve(0).points] == [1, 2, 4, 8, 16]
    assert data.errors[0] == pytest.approx((0.95, 0.85, 0.75, 0.65, 0.55))
    assert sorted(data.order(1, 99)) == list(range(60))


def test_an_archive_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"none\.tar\.gz is not a file"):
        archive(tmp_path / "none.tar.gz")


@pytest.fixture(scope="module")
def sets() -> list[DataSet]:
    return data_sets(archive(None))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "pruner"),
    [
        ("stopping", lambda: SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA)),
        ("median", MedianPruner),
    ],
)
def test_every_report_gets_the_verdict_of_optuna(
    sets: list[DataSet], name: str, pruner: Callable[[], BasePruner]
) -> None:
    reports = 0
    for data in sets:
        order = data.order(0, rungs.TRIALS)
        rule = rungs.RULES[name](len(order), data.most)
        beside = Beside(rule=rule, pruner=pruner())
        played = rungs.play_on(data, beside, order)
        reports += sum(len(trial.values) for trial in played.trials)
        assert beside.differences == []
    assert reports > 1_500


@pytest.mark.long
def test_promotion_finds_more_with_less_than_stopping(sets: list[DataSet]) -> None:
    """The bar of asha; ``sha`` needs less, ``stopping`` more, and finds no better."""
    asha, sha, stopping = (
        rungs.worth(sets, rungs.RULES[name]) for name in ("asha", "sha", "stopping")
    )
    assert asha.regret <= 0.0030
    assert asha.resource <= 0.23
    assert sha.resource < asha.resource < stopping.resource
    assert asha.regret <= min(sha.regret, stopping.regret)
