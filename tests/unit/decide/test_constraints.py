"""Constraints between a problem and a policy: each alone, before a policy that writes down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bftrainer.decide.constraints.caps import WithinCaps
from bftrainer.decide.constraints.chain import Ask, Constraint, chained
from bftrainer.decide.constraints.offer import Offer
from bftrainer.decide.constraints.planned import AsPlanned
from bftrainer.decide.constraints.rests import Rests
from bftrainer.decide.constraints.size_sets import InSizes
from bftrainer.decide.policies.base import Decided, load_policy
from bftrainer.decide.policy_answer import on_pool, on_problem
from bftrainer.model.decision import (
    Cooling,
    DecisionInput,
    Memory,
    Pool,
    PoolNode,
    Settings,
    SlowNode,
)
from bftrainer.model.fairness import Wait
from bftrainer.model.trainer import TrainerRecord
from milp.problem import Allocation, Cap, Curve, Problem, ProblemNode, ProblemTrainer
from tests.support.snapshots import T0, idle_nodes, record, snapshot

LINEAR = Curve(sizes=(1, 8), samples_per_s=(10.0, 80.0))


def trainer(trainer_id: str, n_min: int, n_max: int, sizes: tuple[int, ...] = ()) -> ProblemTrainer:
    return ProblemTrainer(
        trainer_id=trainer_id,
        n_min=n_min,
        n_max=n_max,
        sizes=sizes,
        curve=LINEAR,
        rescale_up_s=1.0,
        rescale_down_s=1.0,
    )


def problem_of(n_nodes: int, *trainers: ProblemTrainer, caps: tuple[Cap, ...] = ()) -> Problem:
    nodes = tuple(ProblemNode(name=f"n{number + 1}") for number in range(n_nodes))
    return Problem(nodes=nodes, trainers=trainers, t_fwd_s=120.0, p_jmax=9, caps=caps)


def allocation_of(assignment: Mapping[str, str]) -> Allocation:
    return Allocation(assignment=assignment, objective=0.0, node_price=0.0, marginals={})


@dataclass
class Greedy:
    """Gives the first trainers as much as they may have; remembers what it was asked."""

    asked: list[Problem] = field(default_factory=list)

    def __call__(self, problem: Problem) -> Decided:
        self.asked.append(problem)
        names, assignment = [node.name for node in problem.nodes], dict[str, str]()
        for asking in problem.trainers:
            size = min(asking.n_max, len(names))
            if size >= asking.n_min:
                assignment |= dict.fromkeys(names[:size], asking.trainer_id)
                names = names[size:]
        return Decided(allocation=allocation_of(assignment))


def sizes_of(decided: Decided) -> Mapping[str, int]:
    return decided.allocation.sizes()


def given_of(*records: TrainerRecord, training: Mapping[str, str] | None = None) -> DecisionInput:
    return DecisionInput(
        now_s=T0,
        snapshot=snapshot(idle_nodes(4)),
        is_new_snapshot=True,
        pilots=(),
        trainers=records,
        settings=Settings(),
        memory=Memory(),
        training=training or {},
    )


def test_the_first_constraint_is_the_outermost() -> None:
    passed: list[str] = []

    @dataclass(frozen=True)
    class Noting(Constraint[Problem, Decided]):
        name: str  # type: ignore[misc]
        in_words: str = "notes"

        def answer(self, problem: Problem, ask: Ask) -> Decided:
            passed.append(f"{self.name} in")
            decided = ask(problem)
            passed.append(f"{self.name} out")
            return decided

    policy = Greedy()
    problem = problem_of(2, trainer("t1", 1, 2))
    decided = chained([Noting("a"), Noting("b")], policy)(problem)
    assert passed == ["a in", "b in", "b out", "a out"]
    assert policy.asked == [problem]
    assert sizes_of(decided) == {"t1": 2}


def test_a_cap_binds_its_members_and_what_they_leave_goes_to_others() -> None:
    """4 nodes; ann's two trainers may have 1 in all, so the third gets 3."""
    policy = Greedy()
    cap = Cap(name="user ann", trainers=("t1", "t2"), most=1)
    trainers = [trainer(f"t{number}", 1, 4) for number in (1, 2, 3)]
    decided = WithinCaps().answer(problem_of(4, *trainers, caps=(cap,)), policy)
    assert sizes_of(decided) == {"t1": 1, "t3": 3}
    assert all(not asked.caps for asked in policy.asked), "policies need not know caps"


def test_without_caps_the_policy_sees_the_problem_itself() -> None:
    policy, problem = Greedy(), problem_of(2, trainer("t1", 1, 2))
    WithinCaps().answer(problem, policy)
    InSizes().answer(problem, policy)
    assert policy.asked[0] is policy.asked[1] is problem


def test_a_size_between_two_of_a_set_is_cut_to_the_smaller_one() -> None:
    """7 nodes and sizes 2, 4, 8: t1 has 4, and t2 the other 3."""
    trainers = trainer("t1", 2, 8, sizes=(2, 4, 8)), trainer("t2", 1, 8)
    decided = InSizes().answer(problem_of(7, *trainers), Greedy())
    assert sizes_of(decided) == {"t1": 4, "t2": 3}


def test_who_rests_does_not_grow_and_is_asked_again_when_it_may() -> None:
    plain = record("t1")
    spec = replace(plain.spec, rescale_rest_s=60.0)
    resting = replace(plain, spec=spec, shrunk_s=T0 - 40.0)
    given = given_of(resting, record("t2"), training={"n1": "t1"})
    problem = problem_of(4, trainer("t1", 1, 4), trainer("t2", 1, 4))
    decided = Rests(given=given).answer(problem, Greedy())
    assert sizes_of(decided) == {"t1": 1, "t2": 3}
    assert decided.wake_at_s == T0 + 20.0
    over = given_of(replace(resting, shrunk_s=T0 - 60.0), training={"n1": "t1"})
    assert sizes_of(Rests(given=over).answer(problem, Greedy())) == {"t1": 4}


def test_a_node_on_which_a_trainer_starts_stays_with_it() -> None:
    """The greedy answer exchanges n1 and n2 of two trainers that start; nothing is gained by it."""
    memory = Memory(assignment={"n1": "t2", "n2": "t1"})
    problem = problem_of(2, trainer("t1", 1, 1), trainer("t2", 1, 1))
    plain = Greedy()(problem)
    assert plain.allocation.assignment == {"n1": "t1", "n2": "t2"}
    decided = AsPlanned(given=given_of(), memory=memory).answer(problem, Greedy())
    assert decided.allocation.assignment == {"n1": "t2", "n2": "t1"}


def offer_of(given: DecisionInput, memory: Memory, policy: str, *, user: str = "") -> Offer:
    """Offer one node, under a pilot of that user."""
    node = PoolNode(name="n1", node_type="cpu", gpus=0, usable_until_s=None, user=user)
    return Offer(
        given=given,
        memory=memory,
        pool=Pool(nodes=(node,)),
        policy=load_policy(policy),
        names={"n1"},
    )


def test_the_order_is_written_down_once() -> None:
    """ADR 45 lists all; those that bind nothing in a decision are not asked in it."""
    plain = record("t1")
    given = replace(given_of(plain), settings=Settings(explore_budget=0.05))
    problem = problem_of(2, trainer("t1", 1, 2))
    first = ["rest-after-shrink", "priced-swaps", "planned-nodes", "slow-nodes", "admission"]
    of_every_policy = [*first, "unknown-rates"]

    slow = Memory(slow_nodes={"n1": SlowNode(fraction=0.5, seen_s=T0, trainer_id="t1")})

    def names(policy: str, problem: Problem = problem, memory: Memory = slow) -> list[str]:
        offer = offer_of(given, memory, policy, user="ann")
        constraints = on_problem(offer, problem, load_policy(policy))
        return [constraint.name for constraint in constraints]

    assert names("milp") == [*of_every_policy, "exploration"]
    assert names("srtf") == [*of_every_policy, "caps", "size-sets"]
    without_slow_nodes = [name for name in names("srtf") if name != "slow-nodes"]
    assert names("no-rescale") == without_slow_nodes
    assert names("srtf", memory=Memory()) == without_slow_nodes
    cap = Cap(name="user ann", trainers=("t1",), most=1)
    bound = problem_of(2, trainer("t1", 1, 2, sizes=(1, 2)), caps=(cap,))
    assert names("milp", bound) == [*of_every_policy, "exploration", "caps", "size-sets"]


def test_the_order_of_those_that_see_the_pool_is_written_down_once() -> None:
    cooling = Cooling(until_s=T0 + 9.0, failures=2, trainer_id="t1", cause="It exited.")
    busy = replace(
        given_of(record("t1")), cooling={"n1": cooling}, settled_until_s={"t1": T0 + 9.0}
    )
    slow_node = SlowNode(fraction=0.5, seen_s=T0, trainer_id="t1")
    memory = Memory(slow_nodes={"n1": slow_node}, waits={"t1": Wait(since_s=T0)})
    names = [bound.name for bound in on_pool(offer_of(busy, memory, "milp", user="ann"))]
    assert names == [
        "awaited-swaps",
        "awaited-replacements",
        "cooling-nodes",
        "rescale-budget",
        "turns",
    ]
    assert on_pool(offer_of(given_of(record("t1")), Memory(), "milp")) == []
