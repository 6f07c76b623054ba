"""The rules on real learning curves (``scripts/bench_rungs.py``; LCDB is downloaded with pip)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from _bench import rungs
from _bench.lcdb import ETA, DataSet, archive, data_sets
from _bench.pruners import Beside
from optuna.pruners import BasePruner, MedianPruner, SuccessiveHalvingPruner

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def sets() -> list[DataSet]:
    return data_sets(archive(None))


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


def test_promotion_finds_more_with_less_than_stopping(sets: list[DataSet]) -> None:
    """The bar of asha; ``sha`` needs less, ``stopping`` more, and finds no better."""
    asha, sha, stopping = (
        rungs.worth(sets, rungs.RULES[name]) for name in ("asha", "sha", "stopping")
    )
    assert asha.regret <= 0.0030
    assert asha.resource <= 0.23
    assert sha.resource < asha.resource < stopping.resource
    assert asha.regret <= min(sha.regret, stopping.regret)
