"""A decision that fails → the same decision without the trainer, job or node at fault.

``surviving`` is called by ``decide``. A decision that succeeds costs one look at the memory.
When one fails, everybody else is decided as if whoever is at fault were not there: a trainer
that no problem can be stated with (``unfit``), whom the solver's refusal names, or else whom
halves of the queue, of the trainers or of the nodes show: as few as make it succeed. Of a job
first what it asks for is left out, so that it counts as one we do not understand and gets its
nodes back. All trainers or all nodes are never at fault: when a decision fails unless nobody
is left, everybody keeps what they have, and jobs get nodes back all the same.

Who was left out is remembered and left out at once for ``RETRY_S``, then tried again. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bftrainer.decide.curves import unfit
from bftrainer.decide.leftout import Kind, Known, LeftOut
from bftrainer.decide.types import DecisionInput, Plan
from bftrainer.poll.snapshot import Job
from milp.errors import ProblemError

RETRY_S = 60.0
MOST_TRIES = 64  # of one decision; one culprit among a thousand takes about twenty
LONGEST_REASON = 300  # characters


Attempt = Callable[[DecisionInput], Plan]


def surviving(
    given: DecisionInput,
    attempt: Attempt,
    keep: Attempt,
    on_failure: Callable[[Exception], object],
) -> Plan:
    """Return what ``attempt`` decides, of as many as it can.

    Args:
        given: the decision's input.
        attempt: the decision.
        keep: the same without an allocation; asked when nothing else helps.
        on_failure: told of the first exception of a decision, if there is one.

    Raises:
        Exception: what ``keep`` raises.
    """
    known, policy = _still(given)
    try:
        return attempt(_without(given, known))
    except Exception as failure:  # noqa: BLE001 - of one of many: the others are decided
        on_failure(failure)
        search = _Search(given=given, attempt=attempt, keep=keep, known=known, failure=failure)
        plan = search.plan(is_short=policy is not None)
        if plan is not None:
            return plan
        policy = policy or _left_out(given, Kind.POLICY, given.settings.policy, failure)
        return keep(_without(given, {**search.known, policy.key: policy}))


def reason_of(failure: Exception) -> str:
    """Say in one line what failed."""
    if isinstance(failure, ProblemError):
        return failure.cause[:LONGEST_REASON]
    return f"{type(failure).__name__}: {failure}"[:LONGEST_REASON].rstrip(".") + "."


def _left_out(given: DecisionInput, kind: Kind, name: str, why: Exception | str) -> LeftOut:
    reason = why if isinstance(why, str) else reason_of(why)
    return LeftOut(kind=kind, name=name, reason=reason, since_s=given.now_s)


def _still(given: DecisionInput) -> tuple[Known, LeftOut | None]:
    """Return who was found to be at fault a short while ago, the policy apart."""
    if not given.memory.left_out:
        return given.memory.left_out, None
    there = {kind: set(_names(given, kind)) for kind in Kind}
    young = {
        key: one
        for key, one in given.memory.left_out.items()
        if 0.0 <= given.now_s - one.since_s < RETRY_S and one.name in there[one.kind]
    }
    policy = next((one for one in young.values() if one.kind is Kind.POLICY), None)
    return {k: one for k, one in young.items() if one is not policy}, policy


def _names(given: DecisionInput, kind: Kind) -> Sequence[str]:
    match kind:
        case Kind.TRAINER:
            return [record.trainer_id for record in given.trainers]
        case Kind.NODE:
            return [node.name for node in given.snapshot.nodes or ()]
        case Kind.POLICY:
            return [given.settings.policy]
    return [job.job_id for job in given.snapshot.jobs or () if job.is_ordinary]


def _without(given: DecisionInput, known: Known) -> DecisionInput:
    """Return the input as if those were not there; the memory says who is left out."""
    if not known and not given.memory.left_out:
        return given
    gone: dict[Kind, set[str]] = {kind: set() for kind in Kind}
    for one in known.values():
        gone[one.kind].add(one.name)
    snapshot, trainers = given.snapshot, given.trainers
    if gone[Kind.TRAINER]:
        trainers = tuple(r for r in trainers if r.trainer_id not in gone[Kind.TRAINER])
    if gone[Kind.NODE]:
        nodes = snapshot.nodes or ()
        snapshot = replace(snapshot, nodes=tuple(n for n in nodes if n.name not in gone[Kind.NODE]))
    if gone[Kind.JOB] or gone[Kind.REQUEST]:
        jobs = [j for j in snapshot.jobs or () if j.job_id not in gone[Kind.JOB]]
        jobs = [_unclear(j) if j.job_id in gone[Kind.REQUEST] else j for j in jobs]
        snapshot = replace(snapshot, jobs=tuple(jobs))
    memory = replace(given.memory, left_out=known)
    return replace(given, snapshot=snapshot, trainers=trainers, memory=memory)


def _unclear(job: Job) -> Job:
    """Return the job as one of which nothing is understood but how many nodes it wants."""
    if not job.is_ordinary:
        return job
    return Job(
        job_id=job.job_id,
        user=job.user,
        partition=job.partition,
        state=job.state,
        n_nodes=job.n_nodes,
        time_limit_s=job.time_limit_s,
        priority=job.priority,
        submit_s=job.submit_s,
        nodes=job.nodes,
        unclear="what a decision failed on",
    )


@dataclass(slots=True, kw_only=True)
class _Search:
    """For those on whom a decision fails."""

    given: DecisionInput
    attempt: Attempt
    keep: Attempt
    known: Known  # left out by now
    failure: Exception  # of the last attempt
    tries: int = 0

    def plan(self, *, is_short: bool) -> Plan | None:
        """Return the decision without them; ``None``: it fails whoever is left out.

        Args:
            is_short: ask only those whose fault is plain; a longer search was in vain.
        """
        while named := self._named():
            self.known = {**self.known, **named}
            if (plan := self._try(self.known)) is not None:
                return plan
        if is_short:
            return None
        for kind in (Kind.REQUEST, Kind.TRAINER, Kind.NODE):
            if (plan := self._by_halves(kind)) is not None:
                return plan
        # A job is left out as a whole only where it fails the give-back by itself.
        is_job = self._try(self.known, self.keep) is None
        return self._by_halves(Kind.JOB) if is_job else None

    def _try(self, known: Known, attempt: Attempt | None = None) -> Plan | None:
        self.tries += 1
        try:
            return (attempt or self.attempt)(_without(self.given, known))
        except Exception as failure:  # noqa: BLE001 - the search goes on
            self.failure = failure
            return None

    def _named(self) -> dict[str, LeftOut]:
        """Return those whose fault is plain, and who are not left out yet."""
        given, failure, found = self.given, self.failure, list[LeftOut]()
        if not self.tries:
            unfits = [(r.trainer_id, unfit(r, given.settings)) for r in given.trainers]
            found += [_left_out(given, Kind.TRAINER, name, why) for name, why in unfits if why]
        if isinstance(failure, ProblemError) and self.tries < MOST_TRIES:
            for kind, name in ((Kind.TRAINER, failure.trainer_id), (Kind.NODE, failure.node)):
                if name in _names(given, kind):
                    found.append(_left_out(given, kind, name, failure))
        return {one.key: one for one in found if one.key not in self.known}

    def _by_halves(self, kind: Kind) -> Plan | None:
        """Return the decision without as few of a kind as make it succeed.

        All are left out, then taken back in: a half at once where that goes well, else half
        of that half, and so on. Who cannot be taken back is at fault.
        """
        names = [n for n in _names(self.given, kind) if f"{kind} {n}" not in self.known]
        outside = {n: _left_out(self.given, kind, n, self.failure) for n in names}
        if not names or self._try(self._and(outside)) is None:
            return None
        chunks = [names]
        while chunks:
            if self.tries >= MOST_TRIES:
                return None
            chunk = chunks.pop()
            fewer = {n: one for n, one in outside.items() if n not in chunk}
            if self._try(self._and(fewer)) is not None:
                outside = fewer
            elif len(chunk) == 1:
                outside[chunk[0]] = _left_out(self.given, kind, chunk[0], self.failure)
            else:
                half = len(chunk) // 2
                chunks += [chunk[half:], chunk[:half]]
        plan = self._try(self._and(outside))
        if plan is not None and plan.allocation is None and kind in (Kind.TRAINER, Kind.NODE):
            return None  # nobody is left: it is not they who are at fault
        return plan

    def _and(self, outside: Mapping[str, LeftOut]) -> Known:
        return {**self.known, **{one.key: one for one in outside.values()}}
