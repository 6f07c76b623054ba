"""What every policy must do: one test class, from which each policy's own derives."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.batch.batch_system import OptionError
from bftrainer.decide.policies.base import (
    AllocationPolicy,
    Context,
    Decided,
    Standing,
    in_order,
    load_policy,
    options_of,
    policy_names,
)
from bftrainer.decide.policy_answer import ask
from bftrainer.decide.throughput.fit import MeasuredSize
from bftrainer.model import canonical
from bftrainer.model.decision import Memory
from milp.problem import Problem, ProblemError
from tests.support.examples import examples
from tests.support.policies import allocated, problem_of, trainer
from tests.support.problems import problems

PROBLEMS = problems(max_nodes=9, max_trainers=4, classes="abc")
STANDINGS = st.builds(
    Standing,
    submitted_s=st.floats(0.0, 1000.0),
    attained_node_s=st.floats(0.0, 1e6),
    done_samples=st.integers(0, 10**9),
    left_samples=st.none() | st.integers(0, 10**9),
    points=st.sampled_from(
        [(), (MeasuredSize(1, 10.0, 0.1),), (MeasuredSize(2, 10.0, 0.1), MeasuredSize(5, 7.0, 1.0))]
    ),
    has_rates=st.booleans(),
    deadline_s=st.none() | st.floats(0.0, 3000.0),
    group=st.none() | st.sampled_from(["g1", "g2"]),
)
AFTER_S = st.floats(0.001, 5000.0)


NOT_INSTALLED = (
    "No installed policy is called {name!r}. Add '{name} = MODULE:POLICY' to bftrainer.policies in"
    " setup.cfg, then install again, as entry points are read from what is installed:"
    " .venv/bin/pip install -e . (CONTRIBUTING.md)"
)
MOST = ("could have", "left at its turn", "can use")  # terms that no size exceeds


def check_terms(problem: Problem, decided: Decided) -> None:
    """Check that a policy that tells its terms does so of all who may run, as it decided."""
    if not decided.terms:
        return
    known = [one.trainer_id for one in problem.trainers]
    may_run = in_order(known, decided.order)[: problem.p_jmax]
    assert set(may_run) <= decided.terms.keys() <= set(known)
    sizes = decided.allocation.sizes()
    for name, terms in decided.terms.items():
        by_name = {term.name: term.value for term in terms}
        assert len(by_name) == len(terms) > 0
        assert all(sizes.get(name, 0) <= by_name[most] for most in MOST if most in by_name)


class PolicyConformance:
    """The tests themselves; of a policy that is not installed ``policy`` is overridden."""

    name: str

    def policy(self) -> AllocationPolicy:
        assert self.name in policy_names(), NOT_INSTALLED.format(name=self.name)
        return load_policy(self.name)

    def context(self, problem: Problem, data: st.DataObject) -> Context:
        """Return any context of a first call."""
        ids = [one.trainer_id for one in problem.trainers]
        return Context(
            now_s=data.draw(st.floats(1000.0, 2000.0)),
            seed=data.draw(st.integers(0, 2**32)),
            options=options_of(self.policy(), {}),
            trainers={one: data.draw(STANDINGS) for one in ids},
        )

    def later(self, context: Context, problem: Problem, data: st.DataObject) -> Context:
        """Return the context of a later call, with no state yet."""
        after_s = context.now_s + data.draw(AFTER_S)
        ids = [one.trainer_id for one in problem.trainers]
        return Context(
            now_s=after_s,
            seed=context.seed,
            options=context.options,
            trainers={one: data.draw(STANDINGS) for one in ids},
        )

    def test_has_its_name(self) -> None:
        assert self.policy().name == self.name

    def test_keeps_the_rules(self) -> None:
        policy = self.policy()

        @settings(max_examples=examples(30), deadline=None)
        @given(PROBLEMS, st.data())
        def holds(problem: Problem, data: st.DataObject) -> None:
            context = self.context(problem, data)
            decided = ask(policy, problem, context)  # judges the answer
            known = {one.trainer_id for one in problem.trainers}
            assert set(decided.allocation.marginals) == known
            if decided.wake_at_s is not None:
                assert decided.wake_at_s > context.now_s
            check_terms(problem, decided)

        holds()

    def test_answers_follow_from_what_it_is_given_alone(self) -> None:
        """No answer depends on others that were asked for before and not accepted."""
        policy = self.policy()

        @settings(max_examples=examples(15), deadline=None)
        @given(PROBLEMS, PROBLEMS, st.data())
        def holds(problem: Problem, other: Problem, data: st.DataObject) -> None:
            context = self.context(problem, data)
            first = policy.allocate(problem, context)
            policy.allocate(other, self.context(other, data))
            assert policy.allocate(problem, context) == first

        holds()

    def test_leaves_what_it_is_given_as_it_is(self) -> None:
        policy = self.policy()

        @settings(max_examples=examples(15), deadline=None)
        @given(PROBLEMS, st.data())
        def holds(problem: Problem, data: st.DataObject) -> None:
            context = self.context(problem, data)
            for _ in range(2):  # without a state, and with one
                before = deepcopy((problem, context))
                state = ask(policy, problem, context).state
                policy.allocate(problem, context)
                assert (problem, context) == before
                context = replace(self.later(context, problem, data), state=state)

        holds()

    def test_its_state_may_come_from_the_journal(self) -> None:
        policy = self.policy()

        @settings(max_examples=examples(15), deadline=None)
        @given(PROBLEMS, PROBLEMS, st.data())
        def holds(problem: Problem, other: Problem, data: st.DataObject) -> None:
            context = self.context(problem, data)
            memory = Memory(policy_state=ask(policy, problem, context).state)
            again = canonical.decode(canonical.encode(memory), Memory)
            assert again == memory
            later = self.later(context, other, data)
            live = ask(policy, other, replace(later, state=memory.policy_state))
            assert ask(policy, other, replace(later, state=again.policy_state)) == live

        holds()

    def test_knows_its_options(self) -> None:
        policy = self.policy()
        assert isinstance(options_of(policy, {}), policy.traits.options)
        with pytest.raises(OptionError, match=r"BFT-3053.*has no option 'no_such_option'"):
            options_of(policy, {"no_such_option": 1})

    def test_empty_pool_and_no_trainers(self) -> None:
        assert allocated(self.policy(), problem_of(0, trainer("t1"))).assignment == {}
        assert allocated(self.policy(), problem_of(3)).assignment == {}

    def test_uses_what_is_idle(self) -> None:
        assert allocated(self.policy(), problem_of(3, trainer("t1"))).sizes() == {"t1": 3}

    def test_refuses_what_is_malformed(self) -> None:
        with pytest.raises(ProblemError, match="BFT-3006"):
            allocated(self.policy(), problem_of(3, trainer("t1", n_min=4, n_max=3)))
