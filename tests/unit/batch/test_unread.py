"""Looks that could not read everything: what is known of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.batch.announcer import UNSEEN_S, Announcement, UnseenAnnouncements
from bftrainer.model.cluster import NodeState, Reservation, Snapshot
from tests.support.snapshots import (
    SOURCES,
    T0,
    idle_nodes,
    pending,
    running,
    snapshot,
    with_state,
    without,
)

SOON = Reservation(name="soon", start_s=T0 + 60, end_s=T0 + 120, nodes=("n1",))
BEFORE = snapshot(idle_nodes(2), [pending("7", 1)], reservations=[SOON])
NOW = snapshot(idle_nodes(3), [pending("7", 1), pending("8", 1)], at_s=T0 + 1)


@pytest.mark.parametrize("source", SOURCES)
def test_what_was_not_read_is_as_it_was_last_known(source: str) -> None:
    seen = without(NOW, source).with_last_known(BEFORE)
    assert seen.unread == (source,)
    assert not seen.is_complete
    for part in SOURCES:
        assert getattr(seen, part) == getattr(BEFORE if part == source else NOW, part)
    assert seen.taken_at_s == NOW.taken_at_s


def test_a_look_that_read_everything_stays_as_it_is() -> None:
    assert NOW.with_last_known(BEFORE) is NOW
    assert NOW.is_complete


def test_where_nobody_answered_nothing_is_known() -> None:
    nothing = without(without(NOW, "nodes"), "jobs")
    seen = nothing.with_last_known(BEFORE)
    assert (seen.nodes, seen.jobs) == (None, None)


def test_before_the_first_whole_look_nothing_is_filled_in() -> None:
    assert without(NOW, "jobs").with_last_known(None).jobs is None


def test_nodes_that_are_not_read_any_more_are_not_idle_where_a_job_began() -> None:
    busy = replace(NOW, jobs=(running("9", "n2"), *(NOW.jobs or ())))
    seen = without(busy, "nodes").with_last_known(BEFORE)
    assert seen.nodes == with_state(idle_nodes(2), NodeState.ALLOCATED, "n2")


def test_a_look_without_the_queue_neither_shows_nor_refuses_an_announced_job() -> None:
    now_s = T0
    announced = UnseenAnnouncements(lambda: now_s)
    job = pending("announced-1", 1, reason="", submit_s=T0)
    announced.hear((Announcement(at_s=T0, partition="batch", job=job),))

    def look(seen: Snapshot) -> list[str]:
        looked = announced.add_to(seen.with_last_known(BEFORE), announced.look_begins())
        return [job.job_id for job in looked.jobs or ()]

    now_s += 2 * UNSEEN_S
    assert look(without(NOW, "jobs")) == ["7", "announced-1"]
    assert announced.is_unshown
    assert look(NOW) == ["7", "8"]
    assert not announced.is_unshown
