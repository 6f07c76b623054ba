"""A set of sizes and the rest after a shrink, from the plan to the generations and explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.api.admission import check_spec
from bftrainer.daemon.explain.sizes import explain_trainer
from bftrainer.fleet.generations.members import Rescaled
from bftrainer.journal.journal import Journal
from bftrainer.model.canonical import from_plain, to_plain
from bftrainer.model.decision import Plan
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerChange, TrainerRecord, TrainerSpec
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.generations import Driver
from tests.support.snapshots import T0, Fold, held, idle_nodes, node_names, record, snapshot
from tests.unit.fleet.test_restarting import RestartDriver
from tests.unit.fleet.test_trainer_book import Site

SET = (1, 2, 4, 8)


def with_spec(trainer: TrainerRecord, **changes: object) -> TrainerRecord:
    return replace(trainer, spec=replace(trainer.spec, **changes))  # type: ignore[arg-type]  # test values


class Decisions:
    """Seven nodes with pilots; trainers train where the last plan says."""

    def __init__(self, n_nodes: int = 7) -> None:
        self.fold, self.n_nodes = Fold(), n_nodes
        self.training: Mapping[str, str] = {}

    def decide(self, at_s: float, *trainers: TrainerRecord) -> dict[str, int]:
        seen, pilots = snapshot(idle_nodes(self.n_nodes)), held(*node_names(self.n_nodes))
        self.plan: Plan = self.fold.decide(
            seen, pilots, trainers, at_s=T0 + at_s, training=self.training
        )
        self.training = self.plan.assignment
        return dict(Counter(self.plan.assignment.values()))

    def said(self, trainer: TrainerRecord, at_s: float) -> str:
        nodes, size = idle_nodes(self.n_nodes), Counter(self.training.values())["t1"]
        told = explain_trainer(
            trainer, self.plan, self.fold.settings, (trainer,), nodes, size, now_s=T0 + at_s
        )
        return " ".join(told)


def test_a_plan_has_sizes_of_the_set_and_explain_says_so() -> None:
    site, own = Decisions(), with_spec(record(), sizes=SET)
    assert site.decide(0.0, own) == {"t1": 4}
    assert "It may have 1,2,4,8 nodes only (--nodes)." in site.said(own, 0.0)
    assert site.decide(30.0, own, record("t2", n_max=3)) == {"t1": 4, "t2": 3}


def test_a_trainer_that_rests_does_not_grow_and_others_do() -> None:
    site, rests = Decisions(), with_spec(record(), rescale_rest_s=600.0)
    site.training = dict.fromkeys(node_names(2), "t1")
    rests = replace(rests, shrunk_s=T0)
    other = record("t2", n_max=3)
    assert site.decide(1.0, rests, other) == {"t1": 2, "t2": 3}
    assert "for 599 s it does not grow (--rescale-rest)" in site.said(rests, 1.0)
    assert site.plan.wake_at_s == T0 + 600.0
    assert site.decide(601.0, rests, other)["t1"] == 4
    assert "rest" not in site.said(rests, 601.0)


def test_a_trainer_that_rests_and_has_no_nodes_may_start() -> None:
    rests = replace(with_spec(record(), rescale_rest_s=600.0), shrunk_s=T0)
    assert Decisions().decide(1.0, rests) == {"t1": 7}


@pytest.mark.parametrize(("rest_s", "expected"), [(600.0, 103.0), (0.0, None)])
def test_a_shrink_is_remembered_over_a_restart_of_the_daemon(
    tmp_path: Path, rest_s: float, expected: float | None
) -> None:
    with closing(Journal.open(tmp_path / "journal.db", clock=lambda: 100.0)) as journal:
        spec = trainer_spec(tmp_path, SLOW, n_max=4, rescale_rest_s=rest_s)
        journal.submit_all([(spec, ())], 100.0)
        site = Site(tmp_path, journal)
        site.target("n1", "n2")
        site.enter()
        assert site.book.records[site.trainer_id].shrunk_s is None
        site.lose_worker("n2")
        site.enter(step=20)
        assert site.book.records[site.trainer_id].progress.size == 1
        heir = Site(tmp_path, journal)
        assert heir.book.records[heir.trainer_id].shrunk_s == expected


def test_generations_have_sizes_of_the_set_only() -> None:
    d = Driver(n_max=8, join_window_s=0.0)
    d.machine.size_range = replace(d.machine.size_range, sizes=(1, 2, 4))
    d.target("n1", "n2", "n3", "n4")
    d.warm("n1", "n2", "n3")  # the last one does not come
    d.ready()
    (done,) = d.wanted(Rescaled, d.enter())
    assert done.size in (1, 2)
    while d.machine.forming is not None:
        d.ready()
        (done,) = d.wanted(Rescaled, d.enter())
    assert done.size == 2
    d.warm("n4")
    d.ready()
    (done,) = d.wanted(Rescaled, d.enter(step=5))
    assert (done.size_before, done.size) == (2, 4)
    d.exit(d.on("n4"), -9, "out of memory")
    d.ready()
    (done,) = d.wanted(Rescaled, d.enter(step=6))
    assert (done.size_before, done.size) == (4, 2)


def test_a_restart_waits_until_the_next_size_is_possible() -> None:
    d = RestartDriver()
    d.machine.size_range = replace(d.machine.size_range, sizes=(1, 2, 4))
    d.form("n1", "n2")
    d.target("n1", "n2", "n3", "n4")
    d.warm("n3")
    d.wait(60.0)
    assert not d.machine.course.is_parking
    d.warm("n4")
    d.wait(60.0)
    assert d.machine.course.is_parking


def test_earlier_releases_read_what_has_no_set(tmp_path: Path) -> None:
    spec = trainer_spec(tmp_path, SLOW)
    plain = to_plain(spec)
    assert not {"sizes", "rescale_rest_s", "seed"} & plain.keys()
    own = replace(spec, n_max=8, sizes=SET, rescale_rest_s=60.0, seed=5)
    assert from_plain(to_plain(own), TrainerSpec) == own
    assert TrainerChange(n_min=1, n_max=8, sizes=()).applied(own).sizes == ()
    assert TrainerChange(weight=2.0).applied(own).sizes == SET


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sizes": (2, 4)}, "BFT-1002"),  # n_min is 1
        ({"sizes": (1, 8, 4, 8)}, "BFT-1002"),
        ({"sizes": (1, 4)}, "BFT-1002"),  # n_max is 8
        ({"sizes": (1, *range(3, 80), 100), "n_max": 100}, "BFT-1002"),
        ({"rescale_rest_s": -1.0}, "BFT-1016"),
        ({"rescale_rest_s": float("nan")}, "BFT-1016"),
        ({"seed": -1}, "BFT-1016"),
        ({"seed": 2**32}, "BFT-1016"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, changes: dict[str, object], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_spec(trainer_spec(tmp_path, SLOW, **{"n_max": 8, **changes}))
    assert caught.value.code == code
