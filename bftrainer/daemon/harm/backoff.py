"""The level of the daemon's back-off, from measured hand-overs, and its effect. Pure.

Rule. One level up, 5 at most, when the *tally* of bad hand-overs reaches 3. A hand-over that was
certainly bad, whatever the batch system's clock and ticks add, adds 1; a good one takes off twice
the odds of a bad one under the promise, 2 * 0.05 / 0.95, down to 0. This is a cumulative sum test
(E. S. Page, Biometrika 41, 1954): while 1% are bad, the level rises once in 320,000 hand-overs,
with 10% bad once in 100, with all bad after 3 (docs/adr/0051-the-tally.md). The hand-overs that
one decision learns of add 1 at most together: what has one cause, a sleep of the daemon or a
forecast of one cycle, counts once, however many nodes it concerns.

Bad are: a late hand-over; one whose job lost a cycle of the scheduler, longer than the limit,
because it had to preempt; a release for a job that did not start, counted once per job. Each level

* halves the number of nodes and parts of nodes that may be held, one for each pilot (starting from
  the most held at one of these hand-overs, because many may just have been released; at least one,
  or nothing could show an improvement),
* lets one more scheduler cycle pass before a released node is taken again,
* keeps one more node of each type in reserve.

Hand-overs and releases in vain are counted by pilot, too: a job that takes three parts of a node
makes three. Where pilots have whole nodes, all of this counts nodes.

``quiet_s`` in which the promise was kept, with a good hand-over: one level down. Without any
hand-over, four times as long. The state is journalled (entries of kind ``back-off``), so a restart
keeps the level. Called by ``bftrainer.daemon.harm.book``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from bftrainer.daemon.harm.ledger import HandOver, Rule, Vain, Why
from bftrainer.model.columns import counted
from bftrainer.model.decision import Settings

KIND: Final = "back-off"  # of the journal's entries
MAX_TALLY: Final = 3.0
# A rate of bad hand-overs moves the tally up only where its odds are more than so many times those
# of the promise. With 1 the promised rate itself would raise the level once in 200 hand-overs.
TOLERANCE: Final = 2.0
MIN_FORGIVEN: Final = 0.05  # by a good hand-over, also where all of them are promised
MAX_LEVEL: Final = 5
PATIENCE: Final = 4.0  # times ``quiet_s`` if there was no hand-over
JOBS_REMEMBERED: Final = 20
# The start of a job shows that its node is free, up to one scheduler tick late (3 s by Slurm's
# default), in whole seconds.
ROUNDING_S: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """State of the fold; level 0: not backing off."""

    level: int = 0
    base_nodes: int = 0  # most held when level 1 began; parts count as nodes
    changed_s: float = 0.0  # of the level
    tally: float = 0.0  # of bad hand-overs, since then
    most_held: int = 0  # pilots, at a hand-over since the tally was last 0
    late_s: float = 0.0  # since when the promise is kept; at first the last change of level
    good: float = 0.0  # hand-overs since late_s, weighted as in the tally
    bad: float = 0.0
    in_vain: tuple[str, ...] = ()  # jobs already counted; each counts once
    has_parts: bool = False  # a pilot of these hand-overs had less than a node
    ADDED: ClassVar = frozenset({"has_parts", "tally", "most_held", "bad"})
    REMOVED: ClassVar = frozenset({"window", "held"})


def record_hand_overs(
    state: BackOff,
    outcomes: Iterable[HandOver | Vain],
    rule: Rule,
    *,
    held_nodes: int,
    now_s: float,
) -> BackOff:
    """Record what one decision settled; unmeasured hand-overs change nothing.

    Args:
        state: so far.
        outcomes: the hand-overs and the releases in vain, each of one pilot.
        rule: the promise.
        held_nodes: nodes, and parts of nodes, that were held; a pilot has one.
        now_s: seconds since the epoch.
    """
    verdicts: list[bool] = []
    in_vain, has_parts = state.in_vain, state.has_parts
    for outcome in outcomes:
        if isinstance(outcome, Vain):
            job = outcome.family or outcome.job_id
            if outcome.why is not Why.DID_NOT_START or job in in_vain:
                continue
            in_vain = (*in_vain, job)[-JOBS_REMEMBERED:]
            is_bad = True
        else:
            if outcome.delay_s is None:
                continue
            is_bad = _is_late(outcome, rule)
        verdicts.append(is_bad)
        has_parts = has_parts or outcome.gpus > 0
    if not verdicts:
        return state
    state = replace(state, in_vain=in_vain, has_parts=has_parts)
    state = _counted(state, verdicts, rule, held_nodes, now_s)
    if state.tally < MAX_TALLY or state.level >= MAX_LEVEL:
        return state
    base_nodes = state.base_nodes
    if state.level == 0:
        base_nodes = max(1, state.most_held)
    return BackOff(
        level=state.level + 1,
        base_nodes=base_nodes,
        changed_s=now_s,
        late_s=now_s,
        in_vain=state.in_vain,
        has_parts=state.has_parts,
    )


def _counted(
    state: BackOff, verdicts: Sequence[bool], rule: Rule, held_nodes: int, now_s: float
) -> BackOff:
    """Count what one decision settled; ``verdicts``: which of the hand-overs were bad."""
    n_bad = sum(verdicts)
    n_good = len(verdicts) - n_bad
    added = n_bad - forgiven(rule) * n_good
    weight = 1.0 / max(1.0, added)  # they add 1 at most, because they usually have one cause
    tally = min(MAX_TALLY, max(0.0, state.tally + weight * added))
    most_held = 0
    if tally:
        most_held = max(state.most_held, held_nodes)
    late_s = state.late_s
    good, bad = state.good + weight * n_good, state.bad + weight * n_bad
    if bad > (1.0 - rule.share) * (good + bad):
        late_s, good, bad = now_s, 0.0, 0.0
    return replace(state, tally=tally, most_held=most_held, late_s=late_s, good=good, bad=bad)


def forgiven(rule: Rule) -> float:
    """Return what a good hand-over takes off the tally."""
    return max(MIN_FORGIVEN, TOLERANCE * (1.0 - rule.share) / rule.share)


def _is_late(done: HandOver, rule: Rule) -> bool:
    """Return whether the node was free too late, or its job lost a cycle by preempting."""
    # That it did is sure, but for a start nobody reported.
    if done.cycle_lost_s - done.slept_s > rule.limit_s:
        return True
    return done.delay_s is not None and _surely_s(done, done.delay_s) > rule.limit_s


def _surely_s(done: HandOver, delay_s: float) -> float:
    """Return the delay without what the batch system's clock and ticks may have added.

    Nor with a sleep of the daemon: holding less does not wake it.

    Without the agent's report it is an upper bound, usually from the second in which the job
    started: a node that was free after 0.1 s may show as 1.1 s, or as 3.1 s if the scheduler
    came to its queue that late.
    """
    delay_s -= done.slept_s
    if done.agent_s is not None:
        return delay_s
    return delay_s - min(done.precision_s, ROUNDING_S)


def rested(state: BackOff, rule: Rule, *, now_s: float) -> BackOff:
    """Let time pass; return the state, possibly one level lower."""
    if state.level == 0:
        return state
    patience = PATIENCE
    if state.good:
        patience = 1.0
    if now_s - state.late_s < patience * rule.quiet_s:
        return state
    level = state.level - 1
    base_nodes, has_parts = 0, False
    if level:
        base_nodes, has_parts = state.base_nodes, state.has_parts
    return BackOff(
        level=level,
        base_nodes=base_nodes,
        changed_s=now_s,
        late_s=now_s,
        in_vain=state.in_vain,
        has_parts=has_parts,
    )


def max_held_nodes(state: BackOff) -> int | None:
    """Return how many nodes or parts of nodes may be held, one per pilot; None: unlimited."""
    if state.level == 0:
        return None
    return max(1, state.base_nodes >> state.level)


def applied(settings: Settings, state: BackOff) -> Settings:
    """Return the settings for decisions; at level 0 the same object."""
    if state.level == 0:
        return settings
    return replace(
        settings,
        max_held_nodes=max_held_nodes(state),
        hold_off_cycles=1.0 + state.level,
        reserve_extra_nodes=state.level,
    )


def sentence(state: BackOff) -> str:
    """Describe the back-off; "" at level 0."""
    max_nodes = max_held_nodes(state)
    if max_nodes is None:
        return ""
    unit, units = "node", "nodes"
    if state.has_parts:
        unit, units = "part of a node", "parts of nodes"
    return (
        f"bftrainer backs off (level {state.level} of {MAX_LEVEL}): it holds "
        f"{counted(max_nodes, unit, units)} at most, takes none before {1 + state.level} scheduler"
        f" cycles have passed and keeps {state.level} more of each type free, because {units} were"
        " handed over too late or in vain."
    )
