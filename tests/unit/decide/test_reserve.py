"""Which free nodes stay unborrowed."""

from __future__ import annotations

from bftrainer.decide.pool import in_reserve
from bftrainer.model.decision import PoolNode, Settings
from tests.support.snapshots import T0, Fold, idle_nodes, record, snapshot


class TestChoice:
    def _choose(self, count: int, **until_s: float | None) -> set[str]:
        free = [
            PoolNode(
                name=name,
                node_type="x",
                gpus=0,
                usable_until_s=None if end is None else T0 + end,
            )
            for name, end in until_s.items()
        ]
        return set(in_reserve(free, Settings(reserve_nodes_per_type=count), T0))

    def test_an_hour_fits_then_the_shorter_gap_is_worth_less_to_trainers(self) -> None:
        order = ["c", "b", "f", "a", "d", "e"]
        for count in range(7):
            chosen = self._choose(count, a=None, b=9000.0, c=3600.0, d=3599.0, e=60.0, f=None)
            assert chosen == set(order[:count])

    def test_it_stays_while_time_passes(self) -> None:
        free = [
            PoolNode(name=f"n{k}", node_type="x", gpus=0, usable_until_s=T0 + 8000.0 + k % 3)
            for k in range(9)
        ]
        three = Settings(reserve_nodes_per_type=3)
        first = in_reserve(free, three, T0)
        assert len(first) == 3
        assert all(in_reserve(free, three, T0 + s) == first for s in (10.0, 900.0, 4000.0))


class TestInTheDecision:
    def test_a_daemon_that_backs_off_keeps_more(self) -> None:
        settings = Settings(reserve_nodes_per_type=1, reserve_extra_nodes=2)
        plan = Fold(settings=settings).decide(snapshot(idle_nodes(100)), (), [record()])
        assert len(plan.reserve) == 3
