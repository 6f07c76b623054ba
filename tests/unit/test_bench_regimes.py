"""``bench_regimes``: its pools and trainers are what they are said to be, its rows are paired."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bench_regimes
import pytest
from _bench import regimes
from _bench.benchmark import Measured

from bftrainer.batch.traces.fragments import Fragments, make_fragments

SEEDS = range(1, 41)


def _idle_at_once(pool: Fragments) -> Iterator[tuple[int, float, float]]:
    yield from zip(pool.node.tolist(), pool.start_s.tolist(), pool.end_s.tolist(), strict=True)


@pytest.mark.parametrize("draw", [regimes.bursts, regimes.spells, regimes.gaps])
def test_a_seed_draws_one_pool_of_nodes_that_are_idle_once_at_a_time(draw: regimes.Draw) -> None:
    first, again, other = draw(1, 1.0), draw(1, 1.0), draw(2, 1.0)
    assert first.start_s.tolist() == again.start_s.tolist()
    assert first.start_s.tolist() != other.start_s.tolist()
    assert len(first.names) <= 64
    last_s: dict[int, float] = {}
    for node, start_s, end_s in _idle_at_once(first):
        assert last_s.get(node, -1.0) < start_s < end_s <= first.span_s[1]
        last_s[node] = end_s
    assert draw(1, 0.5).duration_s == first.duration_s / 2


def test_bursts_come_every_twenty_minutes_and_stay_for_eight() -> None:
    """By hand over forty pools: eight nodes all the time, the rest in bursts of 480 s."""
    pools = [regimes.bursts(seed, 1.0) for seed in SEEDS]
    rows = [row for pool in pools for row in _idle_at_once(pool)]
    staying = [row for row in rows if row[2] - row[1] == 12 * 3600.0]
    assert len(staying) == 8 * len(pools)
    lengths_s = [end_s - start_s for _, start_s, end_s in rows if end_s - start_s < 12 * 3600.0]
    assert min(lengths_s) > 0.0
    assert sum(lengths_s) / len(lengths_s) == pytest.approx(480.0, rel=0.1)
    gaps_s = [regimes.mean_join_gap_s(pool) for pool in pools]
    # A burst waits for the one before to have left, so that they are a little rarer.
    assert 1200.0 < sum(gaps_s) / len(gaps_s) < 1800.0


def test_gaps_are_of_ninety_seconds() -> None:
    rows = [row for seed in SEEDS for row in _idle_at_once(regimes.gaps(seed, 1.0))]
    lengths_s = [end_s - start_s for _, start_s, end_s in rows if end_s < 2160.0]
    assert sum(lengths_s) / len(lengths_s) == pytest.approx(90.0, rel=0.05)


def test_the_mean_time_between_joins_counts_instants_not_nodes() -> None:
    pool = make_fragments(
        names=["a", "b", "c"], node=[0, 1, 2], start_s=[0.0, 300.0, 300.0],
        end_s=[1000.0, 400.0, 900.0], span_s=(0.0, 1000.0),
    )  # fmt: skip
    assert regimes.mean_join_gap_s(pool) == 500.0
    assert bench_regimes.forward_s(pool, "joins") == 500.0
    assert bench_regimes.forward_s(pool, "60") == 60.0
    short = make_fragments(
        names=["a", "b"], node=[0, 1], start_s=[0.0, 0.5], end_s=[1.0, 1.0], span_s=(0.0, 1.0)
    )
    assert bench_regimes.forward_s(short, "joins") == 1.0  # the least that a policy file may have


def test_amdahl_s_curve_has_twelve_percent_serial() -> None:
    one, two, *_, last = regimes.AMDAHL.samples_per_s
    assert one == pytest.approx(1000.0)
    assert two == pytest.approx(1000.0 / 0.56)
    assert last == pytest.approx(1000.0 / 0.1475)  # on 32 nodes


def test_every_regime_admits_all_of_its_trainers_from_the_start() -> None:
    every = regimes.synthetic()
    assert len({one.name for one in every}) == len(every) >= 12
    for one in every:
        trainers = one.trainers(1)
        assert {trainer.submit_s for trainer in trainers} == {0.0}
        assert len({trainer.name for trainer in trainers}) == len(trainers)
    sizes = [trainer.n_max for trainer in regimes.of_few_nodes(1)]
    assert (len(sizes), sizes.count(1), sizes.count(2)) == (60, 30, 30)


def test_spot_traces_are_read_where_they_are_and_else_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(regimes.DATA_VARIABLE, raising=False)
    assert list(regimes.spot()) == []
    assert regimes.why_no_spot() == "BFTRAINER_DATA is not set"
    monkeypatch.setenv(regimes.DATA_VARIABLE, str(tmp_path))
    assert regimes.why_no_spot() == f"{tmp_path / 'spot'} has no files"
    (tmp_path / "spot").mkdir()
    (tmp_path / "spot" / "mine.csv").write_text("node,start_s,end_s\na,0,90000\nb,100,50000\n")
    (found,) = regimes.spot()
    assert (found.name, regimes.why_no_spot()) == ("spot mine", "")
    part = found.pool(1, 1.0)
    assert part.duration_s == 12 * 3600.0
    assert part.span_s[0] != found.pool(2, 1.0).span_s[0]


def test_a_rival_is_held_to_the_default_pool_by_pool() -> None:
    """Twice as much is idle in the second pool; the rival makes 10% more in both."""
    plays = {
        bench_regimes.Task("x", seed, policy): bench_regimes.Played(
            reference_node_h=work, samples=work, completed=0, makespan_s=None, utilization=1.0,
            t_fwd_s=120.0,
        )
        for seed, policy, work in (
            (1, "milp", 10.0), (2, "milp", 20.0), (1, "other", 11.0), (2, "other", 22.0),
        )
    }  # fmt: skip
    (row,) = bench_regimes.rows_of("x", ["other"], [1, 2], plays)
    assert row.work.mean == pytest.approx(0.1)
    assert row.work.half == pytest.approx(0.0, abs=1e-9)


def test_a_regime_is_played_and_the_best_rival_is_the_target() -> None:
    options = ["--quick", "--regime", "flat", "--policies", "fcfs-greedy", "equal-share"]
    arguments = bench_regimes.BENCHMARK.parse([*options, "--seeds", "1", "--processes", "1"])
    measured = Measured()
    bench_regimes.measure(arguments, measured)
    (target,) = measured.targets
    best = max(row["work"]["mean"] for row in measured.results["rows"])
    assert target.measured == pytest.approx(100 * best, abs=1e-3)
    assert {row["policy"] for row in measured.results["rows"]} == {"fcfs-greedy", "equal-share"}
    assert len(measured.results["plays"]) == 3
