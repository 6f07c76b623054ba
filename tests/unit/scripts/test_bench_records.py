"""The arithmetic of ``scripts/_bench``: pauses from records, quantiles, verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from _bench import records, rescale_found, stats, targets, torchft
from _bench.rescaling import KINDS, Pause
from _bench.rival import RivalPause


def _write(directory: Path, node: str, pid: int, steps: list[tuple[float, int, int]]) -> None:
    data = b"".join(
        records.RECORD.pack(at_s, i, generation, size, pid % 10, 0)
        for i, (at_s, generation, size) in enumerate(steps)
    )
    with (directory / f"{node}-{pid}.steps").open("ab") as file:
        file.write(data)


def test_a_pause_is_the_gap_of_a_survivor_and_not_of_a_joiner(tmp_path: Path) -> None:
    _write(tmp_path, "n0", 10, [(1.0, 1, 1), (1.1, 1, 1), (1.6, 2, 2), (1.8, 2, 2)])
    _write(tmp_path, "n1", 21, [(1.7, 2, 2), (1.8, 2, 2)])
    recorder = records.Recorder(tmp_path)
    recorder.poll()
    ((old, new),) = records.survivors(recorder.histories, 2).values()
    assert (old.at_s, new.at_s, new.size) == (1.1, 1.6, 2)
    assert {pid: len(s) for pid, s in recorder.of_generation(2).items()} == {10: 2, 21: 2}


def test_records_that_grow_are_read_once_and_halves_later(tmp_path: Path) -> None:
    _write(tmp_path, "n0", 10, [(1.0, 1, 1)])
    path = tmp_path / "n0-10.steps"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:7])
    recorder = records.Recorder(tmp_path)
    recorder.poll()
    assert len(recorder.histories[10].steps) == 1
    path.write_bytes(whole + whole)
    recorder.poll()
    assert len(recorder.histories[10].steps) == 2


def test_the_usual_step_counts_from_the_tenth_and_falls_back_to_its_size(tmp_path: Path) -> None:
    slow = [(float(i), 1, 2) for i in range(9)]
    quick = [(8.0 + 0.1 * i, 1, 2) for i in range(1, 7)]
    _write(tmp_path, "n0", 10, [*slow, *quick, (20.0, 2, 3), (21.0, 3, 2)])
    recorder = records.Recorder(tmp_path)
    recorder.poll()
    steady = records.steady_by_generation(recorder.histories)
    assert records.usual_step_s(steady, 2, 1) == pytest.approx(0.1)
    assert records.usual_step_s(steady, 2, 3) == pytest.approx(0.1)


def test_few_values_have_a_maximum_and_many_a_percentile() -> None:
    assert stats.tail([0.1, 0.9]) == ("max", 0.9)
    assert stats.tail([float(i) for i in range(1, 101)]) == ("p95", 95.0)
    with pytest.raises(ValueError, match="no values"):
        stats.quantile([], 0.5)


def test_the_interval_of_a_ratio_holds_it_and_shrinks_for_equal_blocks() -> None:
    ratio, low, high = stats.ratio_interval([[2.0, 2.0], [2.2, 2.2]], [[1.0, 1.0], [1.0, 1.0]])
    assert low <= ratio <= high
    assert (low, high) == (2.0, 2.2)
    with pytest.raises(ValueError, match="pairs"):
        stats.ratio_interval([[1.0]], [])


def test_few_pairs_bound_no_median() -> None:
    _, low, high = stats.ratio_interval([[2.7]], [[1.0]])
    assert (low, high) == (2.7, 2.7)  # every other run would lie outside of it
    assert stats.ends_of_pairs(low, high, 1) == (None, None)
    assert stats.ends_of_pairs(1.0, 2.0, stats.LEAST_PAIRS - 1) == (None, None)
    assert 0.5**stats.LEAST_PAIRS < stats.BEYOND < 0.5 ** (stats.LEAST_PAIRS - 1)
    assert stats.ends_of_pairs(1.0, 2.0, stats.LEAST_PAIRS) == (1.0, 2.0)


def test_the_interval_of_a_share() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263 and 0 of 20, score method.
    assert stats.share_interval(81, 263) == pytest.approx((25.53, 36.62), abs=0.01)
    assert stats.share_interval(0, 20) == pytest.approx((0.0, 16.11), abs=0.01)
    assert stats.share_interval(0, 0) == (None, None)


def test_one_missed_target_is_a_failure(tmp_path: Path) -> None:
    met = targets.Target(name="pause", measured=0.1, limit=0.1, relation="<=")
    missed = targets.Target(name="ratio", measured=9.9, limit=10.0, relation=">=", unit="")
    assert (met.verdict, missed.verdict) == ("met", "missed")
    assert targets.exit_code([met]) == 0
    assert targets.exit_code([met, missed]) == 1
    targets.write_json(tmp_path / "out" / "r.json", "rescale", {"n": 1}, [met, missed])
    assert '"verdict": "missed"' in (tmp_path / "out" / "r.json").read_text()


def _found() -> rescale_found.Found:
    found = rescale_found.Found(
        check_s=4e-5, lost_s={"silent": [2.1]}, missing={"torchft": "not installed"}
    )
    for kind in KINDS:
        found.pauses.append(
            Pause(
                kind=kind,
                generation=1,
                size=2,
                pause_s=0.04,
                gap_s=0.14,
                step_s=0.1,
                reported_s=0.04,
            )
        )
        found.others.append(RivalPause(system="torchrun", kind=kind, pause_s=8.0, lost_steps=3))
    found.others.append(
        RivalPause(system="torchft", kind="1->2", pause_s=60.0, has_recovered=False)
    )
    found.steps = {1: (1.0, 0.99, 1.02)}
    return found


def test_other_systems_stand_beside_ours_or_it_is_said_why_not() -> None:
    headings, rows = rescale_found.beside(_found())
    assert len(headings) == len(rows[0]) == 4
    assert rows[0] == [
        "1->2",
        "0.040 of 1",
        "8.00 of 1, 3 steps again",
        "none in 60 s, 1 of 1",
    ]
    assert rows[1][-1] == "not measured"


def test_targets_of_a_rescale_are_judged_by_their_own_limits() -> None:
    verdicts = {t.name: t.verdict for t in rescale_found.targets_of("big", _found())}
    assert verdicts["big: pause 4->2"] == "met"
    assert verdicts["big: silent node, lease 2 s"] == "met"
    assert verdicts["big: membership check of a step"] == "met"
    assert verdicts["big: SIGKILL shorter than torchrun"] == "met"
    assert verdicts["big: step / DDP step, size 1"] == "missed"


def test_a_torchft_pause_is_the_longest_gap_until_the_second_step_at_the_size(
    tmp_path: Path,
) -> None:
    steps = [(1.0, 0, 1), (1.1, 0, 1), (1.9, 0, 1), (2.0, 0, 2), (2.1, 0, 2), (9.0, 0, 2)]
    _write(tmp_path, "n0", 10, steps)
    job = torchft.Torchft(tmp_path, tmp_path / "none.py", "big", print)
    job.recorder.poll()
    assert job.gap_s("n0", 1.2, 2, is_kill=False) == pytest.approx(0.8)
    assert job.gap_s("n0", 1.2, 2, is_kill=True) == pytest.approx(0.7)
    assert job.gap_s("n0", 1.2, 3, is_kill=False) == 0.0
