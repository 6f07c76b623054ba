"""The phases of the kill switch: a drain is begun and called off; the end of a daemon is not."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from bftrainer.daemon.kill_switch import Drain, Draining
from bftrainer.fleet.control_plane import ControlPlane
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.release import PilotEnds
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import Release

NOW_S = 1_000_000.0


class Site:
    """A daemon with one idle pilot, which leaves when it is told to."""

    def __init__(self, *noted: Drain) -> None:
        self.noted = list(noted)
        self.offers_again = 0
        self.reasons: list[str] = []
        self.pilots = {"p1": SimpleNamespace(record=SimpleNamespace(node="n1"), was_asked=False)}
        self.busy: frozenset[str] = frozenset()
        self.draining = Draining(
            journal=cast("Journal", self),
            pilots=cast("PilotBook", self),
            plane=cast("ControlPlane", SimpleNamespace(trainers=self)),
            ends=cast("PilotEnds", self),
            decide_soon=lambda: None,
            clock=lambda: NOW_S,
        )

    def takes_nodes(self) -> bool:
        return not self.draining.is_on

    def latest(self, _kind: str) -> object:
        if not self.noted:
            return None
        return SimpleNamespace(payload_if=lambda _type: self.noted[-1])

    def note(self, _kind: str, drain: Drain) -> None:
        self.noted.append(drain)

    def retire(self, _limit_s: float) -> bool:
        return False

    def keep_retired(self) -> None:
        self.offers_again += 1

    def busy_pilots(self) -> frozenset[str]:
        return self.busy

    def release(self, releases: Sequence[Release]) -> None:
        self.reasons += [release.reason for release in releases]


@pytest.mark.parametrize("is_drained_first", [True, False], ids=["during a drain", "alone"])
def test_nobody_calls_off_the_end_of_a_daemon_that_gives_its_nodes_back(
    *, is_drained_first: bool
) -> None:
    site = Site()
    if is_drained_first:
        site.draining.begin("root", 3600.0)
    site.draining.end_daemon("The daemon ends.", 60.0)
    site.draining.begin("root", 3600.0)
    offered = site.offers_again
    assert not site.draining.resume("root")  # who asked is told that this one ends
    assert site.draining.is_on  # else trainers got the nodes again, and lost them at its end
    assert site.offers_again == offered
    site.reasons.clear()
    site.draining.tick()
    assert site.reasons == ["The daemon ends."]
    assert site.noted[-1].is_over  # the next daemon takes nodes


def test_a_drain_asked_for_while_the_daemon_ends_is_the_next_ones_and_no_reprieve() -> None:
    site = Site()
    site.busy = frozenset({"p1"})
    site.draining.end_daemon("The daemon ends.", 0.0)
    site.reasons.clear()
    site.draining.begin("root", 3600.0)  # would let the workers train for an hour
    site.draining.tick()
    assert site.reasons == ["The daemon ends."]
    assert Site(*site.noted).draining.sentence() != ""
    assert Site(*site.noted).draining.is_on


def test_a_drain_that_is_called_off_is_over_for_the_next_daemon_too() -> None:
    site = Site()
    site.draining.begin("root", 60.0)
    assert not site.takes_nodes()
    assert site.draining.resume("root")
    assert site.takes_nodes()
    site.draining.tick()
    assert site.reasons == []
    assert Site(*site.noted).takes_nodes()


def test_what_was_not_begun_is_not_called_off() -> None:
    site = Site()
    site.draining.resume("root")
    assert site.noted == []
    assert site.offers_again == 0
