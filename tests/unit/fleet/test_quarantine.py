"""Which nodes cool down for everybody: evidence, growth, and how it ends."""

from __future__ import annotations

from bftrainer.fleet.trainers.quarantine import FADES_S, MAX_COOL_DOWN_S, Quarantine

FIRST_S = 10.0


class Site:
    """A quarantine and a clock."""

    def __init__(self, first_s: float = FIRST_S) -> None:
        self.quarantine, self.now_s = Quarantine(first_s), 1000.0

    def fail(self, node: str = "n1", trainer_id: str = "t1") -> None:
        self.quarantine.failed(node, trainer_id, "It was killed.", self.now_s)

    def train(self, *nodes: str, trainer_id: str = "t1") -> None:
        self.quarantine.trains(trainer_id, nodes, self.now_s)

    def cooling_s(self) -> dict[str, float]:
        found = self.quarantine.cooling(self.now_s)
        return {node: one.until_s - self.now_s for node, one in found.items()}


def test_one_failure_is_nothing() -> None:
    site = Site()
    site.fail()
    site.train("n2")
    assert site.cooling_s() == {}


def test_failures_while_the_trainer_goes_on_elsewhere_cool_the_node_ever_longer() -> None:
    site = Site()
    spans = []
    for _ in range(12):
        site.fail()
        site.train("n2", "n3")
        spans.append(site.cooling_s().get("n1", 0.0))
        site.now_s += spans[-1]
        assert site.cooling_s() == {}  # it ends by itself
    assert spans[:5] == [0.0, FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert spans[-1] == MAX_COOL_DOWN_S


def test_a_success_there_clears_the_node() -> None:
    site = Site()
    site.fail()
    site.train("n2")
    site.train("n1", "n2")
    site.fail()
    site.train("n2")
    assert site.cooling_s() == {}


def test_a_trainer_that_fails_everywhere_accuses_no_node() -> None:
    site = Site()
    for _ in range(2):
        for node in ("n1", "n2"):
            site.fail(node)
    assert site.cooling_s() == {}
    site.quarantine.ended("t1")
    site.fail("n1", "t2")  # says nothing beside what was forgotten
    assert site.cooling_s() == {}


def test_without_evidence_a_node_is_suspected_for_the_shortest_time_only() -> None:
    site = Site()
    for _ in range(3):
        site.fail()
    assert site.cooling_s() == {"n1": FIRST_S}
    site.now_s += FIRST_S
    site.fail()
    assert site.cooling_s() == {"n1": FIRST_S}


def test_a_trainer_that_then_does_well_elsewhere_is_the_evidence() -> None:
    site = Site()
    for _ in range(3):
        site.fail()
    site.train("n2")
    assert site.cooling_s() == {"n1": 2 * FIRST_S}


def test_two_trainers_that_fail_there_are_evidence() -> None:
    site = Site()
    site.fail(trainer_id="t1")
    site.fail(trainer_id="t2")
    assert site.cooling_s() == {"n1": FIRST_S}


def test_the_trainers_of_others_prove_nothing() -> None:
    site = Site()
    site.fail()
    site.fail()
    site.train("n2", trainer_id="t2")
    assert site.cooling_s() == {}


def test_old_failures_fade() -> None:
    site = Site()
    site.fail()
    site.train("n2")
    site.now_s += FADES_S + 1
    site.fail()
    site.train("n2")
    assert site.cooling_s() == {}


def test_it_can_be_switched_off() -> None:
    site = Site(0.0)
    for _ in range(5):
        site.fail()
        site.train("n2")
    assert site.cooling_s() == {}


def test_a_change_is_told_once() -> None:
    site = Site()
    assert not site.quarantine.has_changed(site.now_s)
    site.fail(trainer_id="t1")
    site.fail(trainer_id="t2")
    assert site.quarantine.has_changed(site.now_s)
    assert not site.quarantine.has_changed(site.now_s)
    site.now_s += FIRST_S
    assert site.quarantine.has_changed(site.now_s)
