"""Repeats a failing decision without the trainer, job or node that it fails on.

All others are decided as if the offender were not there. Left out are those that the solver's
refusal names and those with which no problem can be stated (``unfit``); else bisection finds the
offenders, among the jobs, then the trainers, then the nodes. Of a job only the request is left
out: it counts as one we do not understand and still gets nodes back. If the decision succeeds only
with none left, the policy is at fault: every trainer keeps its nodes, jobs still get nodes back.

What was left out is remembered, left out at once for ``RETRY_S``, then tried again. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bftrainer.decide.decision import decide, unchanged
from bftrainer.decide.exclusion import names_of, sentence, without
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.decide.problem import make_problem_trainer
from bftrainer.model.decision import DecisionInput, Kind, Known, LeftOut, Plan, Settings
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerRecord
from milp.check import validate
from milp.problem import Problem, ProblemError

RETRY_S = 60.0
MOST_TRIES = 32  # for each kind; finding one among a thousand takes a dozen
LONGEST_REASON = 300  # characters
SEARCHED = (Kind.REQUEST, Kind.TRAINER, Kind.NODE)


def decide_surely(
    given: DecisionInput,
    policy: AllocationPolicy,
    on_failure: Callable[[Exception], object] = lambda _: None,
) -> Plan:
    """Decide for as many as possible; raises nothing of its own.

    Args:
        given: everything the decision depends on.
        policy: the allocation policy.
        on_failure: called with each failure. What it raises is raised.
    """
    try:
        return _surviving(given, policy, on_failure)
    except Exception as failure:  # noqa: BLE001 - even give-back failed; preemption remains
        on_failure(failure)
        why = f"BFT-2118: nothing could be decided ({_reason_of(failure)})."
        return replace(unchanged(given, why), trouble=why)


def _surviving(
    given: DecisionInput, policy: AllocationPolicy, on_failure: Callable[[Exception], object]
) -> Plan:
    left_out, at_fault = _still(given)
    try:
        return decide(without(given, left_out), policy)
    except Exception as failure:  # noqa: BLE001 - one of many: decide for the others
        on_failure(failure)
        search = _Search(given=given, policy=policy, left_out=left_out, failure=failure)
    plan = search.named()
    if plan is None and at_fault is None:
        plan = next(filter(None, map(search.halved, SEARCHED)), None)
    if plan is None:
        at_fault = at_fault or _left_out(given, Kind.POLICY, given.settings.policy, search.failure)
        plan = decide(without(given, {**search.left_out, at_fault.key: at_fault}), None)
        plan = replace(plan, trouble=sentence(at_fault))
    return plan


@dataclass(slots=True, kw_only=True)
class _Search:
    """Searches for what a decision fails on."""

    given: DecisionInput
    policy: AllocationPolicy
    left_out: Known  # so far
    failure: Exception  # of the last attempt
    tries: int = 0

    def named(self) -> Plan | None:
        """Return the decision without the obvious offenders; ``None``: it still fails."""
        given = self.given
        offenders: list[LeftOut] = []
        for record in given.trainers:
            why = unfit(record, given.settings)
            if why:
                offenders.append(_left_out(given, Kind.TRAINER, record.trainer_id, why))
        plan, self.tries = None, 0
        while plan is None and self.tries < MOST_TRIES:
            if isinstance(problem := self.failure, ProblemError):
                suspects = ((Kind.TRAINER, problem.trainer_id), (Kind.NODE, problem.node))
                for kind, name in suspects:
                    if name in names_of(given, kind):
                        offenders += [_left_out(given, kind, name, problem)]
            by_key = {offender.key: offender for offender in offenders}
            if by_key.keys() <= self.left_out.keys():
                return None
            self.left_out = {**by_key, **self.left_out}
            plan = self._try(self.left_out)
        return plan

    def halved(self, kind: Kind) -> Plan | None:
        """Return the decision without as few of a kind as make it succeed; ``None``: none do.

        If it fails without all of them, this kind is not at fault. Bisection finds the shortest
        prefix without which the decision succeeds; its last element is an offender.
        """
        left_out, plan, self.tries = self.left_out, None, 0
        while plan is None and self.tries < MOST_TRIES:
            names = [n for n in names_of(self.given, kind) if f"{kind} {n}" not in left_out]
            if not names or self._try(self._and(left_out, kind, names)) is None:
                return None
            fails, goes_well = 0, len(names)
            while goes_well - fails > 1:
                half = (fails + goes_well) // 2
                if self._try(self._and(left_out, kind, names[:half])) is None:
                    fails = half
                else:
                    goes_well = half
            left_out = self._and(left_out, kind, names[goes_well - 1 : goes_well])
            plan = self._try(left_out)
        if plan is not None and plan.allocation is None and kind is not Kind.REQUEST:
            return None  # none are left: this kind is not at fault
        return plan

    def _and(self, left_out: Known, kind: Kind, names: Sequence[str]) -> Known:
        left_out = dict(left_out)
        for name in names:
            offender = _left_out(self.given, kind, name, self.failure)
            left_out[offender.key] = offender
        return left_out

    def _try(self, known: Known) -> Plan | None:
        self.tries += 1
        try:
            return decide(without(self.given, known), self.policy)
        except Exception as failure:  # noqa: BLE001 - the search goes on
            self.failure = failure
            return None


def unfit(record: TrainerRecord, settings: Settings) -> str:
    """Say why no allocation can be made with this trainer, whichever others there are; "": one can.

    Asked when a trainer is submitted, and when a decision has failed.
    """
    try:
        alone = (make_problem_trainer(record, (), settings, ()),)
        validate(
            Problem(nodes=(), trainers=alone, t_fwd_s=0.0, p_jmax=1, objective=settings.objective)
        )
    except ProblemError as problem:
        return problem.cause
    except Exception as failure:  # noqa: BLE001 - e.g. overflow
        return f"Trainer {record.trainer_id}: its numbers cannot be computed with ({failure})."
    return ""


def _reason_of(failure: Exception) -> str:
    """Describe a failure in one line."""
    if isinstance(failure, ProblemError | BftError):
        return failure.cause[:LONGEST_REASON]
    return f"{type(failure).__name__}: {failure}"[:LONGEST_REASON].rstrip(".") + "."


def _left_out(given: DecisionInput, kind: Kind, name: str, why: Exception | str) -> LeftOut:
    if isinstance(why, Exception):
        why = _reason_of(why)
    return LeftOut(kind=kind, name=name, reason=why, since_s=given.now_s)


def _still(given: DecisionInput) -> tuple[Known, LeftOut | None]:
    """Return what was recently found to be at fault, and the policy if it was."""
    searched: dict[str, LeftOut] = {}
    at_fault: LeftOut | None = None
    for key, item in given.memory.left_out.items():
        if not 0.0 <= given.now_s - item.since_s < RETRY_S:
            continue
        if item.kind in SEARCHED:
            searched[key] = item
        elif key == f"{Kind.POLICY} {given.settings.policy}":
            at_fault = item
    return searched, at_fault
