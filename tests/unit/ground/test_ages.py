"""When a step was committed here: what a successor knows of the newest checkpoint."""

from __future__ import annotations

from bftrainer.ground.checkpoint_gap import INTERVALS, PER_INTERVAL, Ages


def test_a_step_that_was_not_remembered_is_as_old_as_the_last_before_it() -> None:
    ages = Ages(interval_s=PER_INTERVAL * 1.0)  # one a second
    for step, now_s in enumerate((0.0, 0.5, 1.0, 1.4, 2.2)):
        ages.note(step, now_s)
    assert [ages.committed_s(step) for step in range(5)] == [0.0, 0.0, 1.0, 1.0, 2.2]


def test_steps_before_the_first_one_here_and_long_ago_are_not_known() -> None:
    ages = Ages(interval_s=PER_INTERVAL * 1.0)
    assert ages.committed_s(3) is None
    kept = PER_INTERVAL * INTERVALS
    for step in range(10, 10 + 2 * kept):
        ages.note(step, float(step))
    assert ages.committed_s(9) is None
    assert ages.committed_s(10 + kept - 1) is None
    assert ages.committed_s(10 + kept) == 10.0 + kept


def test_of_a_step_done_again_the_first_time_counts() -> None:
    ages = Ages(interval_s=PER_INTERVAL * 1.0)
    for step, now_s in ((4, 4.0), (6, 6.0), (5, 7.0), (6, 8.0)):
        ages.note(step, now_s)
    assert ages.committed_s(6) == 6.0
    assert ages.committed_s(4) == 4.0
