"""What can start, starts; and an unchanged world gives an unchanged plan.

Trainers submit, start slowly, finish and fail, nodes come and go, in any order, under a daemon's
real books and decisions on a clock of their own (``tests.support.fleet``). Then nothing changes
any more: whoever fits trains within the time that a start takes and three polls, and from then on
nothing is asked for or given up.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.examples import examples
from tests.support.fleet import Fleet

# Those that give every trainer its smallest size if all fit, and try no size to measure it.
POLICIES = (
    "milp",
    "equal-share",
    "drf",
    "gavel-max-min",
    "optimus",
    "pollux",
    "themis",
)
BACK_OFF_S = 35.0  # the longest after failures, and a pass of the scheduler
ENDLESS = 10**9


class Starts(RuleBasedStateMachine):
    """A site whose world moves as hypothesis likes, and then stands still."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        n_nodes=st.integers(1, 6),
        poll_s=st.sampled_from([1.0, 5.0, 15.0, 30.0, 60.0]),
        hello_s=st.sampled_from([1.0, 10.0]),
    )
    def begin(self, policy: str, n_nodes: int, poll_s: float, hello_s: float) -> None:
        self.fleet = Fleet(n_nodes, policy=policy, poll_s=poll_s, hello_s=hello_s)
        self.nodes = sorted(self.fleet.cluster.types)

    @precondition(lambda self: len(self.fleet.open_trainers()) < 5)
    @rule(
        sizes=st.sampled_from([(1, 1), (1, 4), (2, 2), (2, 4)]),
        start_s=st.sampled_from([1.0, 5.0, 30.0, 60.0]),
        steps=st.sampled_from([5, 40, ENDLESS]),
    )
    def submit(self, sizes: tuple[int, int], start_s: float, steps: int) -> None:
        self.fleet.submit(n_min=sizes[0], n_max=sizes[1], start_s=start_s, steps=steps)

    @precondition(lambda self: self.fleet.open_trainers())
    @rule(pick=st.integers(0, 99))
    def fail(self, pick: int) -> None:
        opened = self.fleet.open_trainers()
        self.fleet.fail(opened[pick % len(opened)])

    @rule(pick=st.integers(0, 99))
    def node_goes(self, pick: int) -> None:
        self.fleet.take(self.nodes[pick % len(self.nodes)])

    @rule(pick=st.integers(0, 99))
    def node_comes(self, pick: int) -> None:
        self.fleet.give(self.nodes[pick % len(self.nodes)])

    @rule(seconds=st.sampled_from([1.0, 7.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.fleet.pass_time(seconds)

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self._stand_still()

    def _stand_still(self) -> None:
        fleet = self.fleet
        for node in self.nodes:
            fleet.give(node)
        for one in fleet.asked.values():
            one.steps = ENDLESS
        n_min = {i: fleet.book.records[i].spec.n_min for i in fleet.open_trainers()}
        if sum(n_min.values()) > len(self.nodes):
            return  # who waits is the policy's choice
        if fleet.settings.policy == "milp":
            n_min = self._started_by_milp(n_min)
        slowest_s = max((fleet.asked[i].start_s for i in fleet.open_trainers()), default=0.0)
        start_s = 2 * fleet.hello_s + slowest_s + 3 * fleet.poll_s
        before = fleet.requested.total()

        def all_train() -> bool:
            sizes = fleet.sizes()
            return all(sizes.get(i, 0) >= n_min[i] for i in fleet.open_trainers() if i in n_min)

        assert fleet.pass_time(start_s + BACK_OFF_S, all_train), f"{fleet.sizes()} of {n_min}"
        fleet.pass_time(start_s + BACK_OFF_S)  # those that grow
        requested, released = fleet.requested.total(), len(fleet.released)
        assert requested - before <= len(self.nodes), "a node was asked for twice"
        sizes = fleet.sizes()
        assert not fleet.pass_time(2 * start_s, lambda: fleet.sizes() != sizes), "sizes change"
        assert (fleet.requested.total(), len(fleet.released)) == (requested, released)

    def _started_by_milp(self, n_min: dict[str, int]) -> dict[str, int]:
        """Leave out all, if one could grow instead of another's start: that may gain more."""
        most = sum(self.fleet.book.records[one].spec.n_max for one in n_min)
        return n_min if most <= len(self.nodes) else {}


def test_a_lease_of_themis_is_for_the_nodes_that_a_trainer_has() -> None:
    """One node of six changed hands at every look: whoever had it became the less badly off."""
    fleet = Fleet(6, policy="themis")
    for n_min, n_max, start_s in ((2, 4, 1.0), (1, 1, 60.0), (2, 4, 1.0)):
        fleet.submit(n_min=n_min, n_max=n_max, start_s=start_s, steps=ENDLESS)
    assert fleet.pass_time(80.0, lambda: fleet.sizes() == {"t1": 3, "t2": 1, "t3": 2})
    assert not fleet.pass_time(80.0, lambda: fleet.sizes() != {"t1": 3, "t2": 1, "t3": 2})


TestStarts = Starts.TestCase
TestStarts.settings = settings(
    max_examples=examples(40, of=4),
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
