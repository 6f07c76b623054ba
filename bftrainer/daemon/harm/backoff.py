"""The level of the daemon's back-off, from measured hand-overs, and its effect. Pure.

Rule. One level up, 5 at most, when of the last 20 measured hand-overs since the last change of
level at least 3 are certainly bad, whatever the batch system's clock and ticks add, and their
share exceeds ``1 - share``. Bad are: a late hand-over; one whose job lost a cycle of the scheduler,
longer than the limit, because it had to preempt; a release for a job that did not start, counted
once per job. Each level

* halves the number of nodes and parts of nodes that may be held, one for each pilot (starting from
  the most held at one of these hand-overs, because many may just have been released; at least one,
  or nothing could show an improvement),
* lets one more scheduler cycle pass before a released node is taken again,
* keeps one more node of each type in reserve.

Hand-overs and releases in vain are counted by pilot, too: a job that takes three parts of a node
makes three. Where pilots have whole nodes, all of this counts nodes.

``quiet_s`` without a bad hand-over and with a good one: one level down. Without any hand-over, four
times as long. The state is journalled (entries of kind ``back-off``), so a restart keeps the level.
Called by ``bftrainer.daemon.harm.book``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from bftrainer.daemon.harm.ledger import HandOver, Rule, Vain, Why
from bftrainer.model.columns import counted
from bftrainer.model.decision import Settings

KIND = "back-off"  # of the journal's entries
WINDOW = 20  # hand-overs
MIN_LATE = 3
MAX_LEVEL = 5
PATIENCE = 4.0  # times ``quiet_s`` if there was no hand-over
# The start of a job shows that its node is free, up to one scheduler tick late (3 s by Slurm's
# default), in whole seconds.
ROUNDING_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    """State of the fold; level 0: not backing off."""

    level: int = 0
    base_nodes: int = 0  # most held in the window when level 1 began; parts count as nodes
    changed_s: float = 0.0  # of the level
    late_s: float = 0.0  # the last bad hand-over, or the last change of level
    window: tuple[bool, ...] = ()  # since then, oldest first: whether it was bad
    held: tuple[int, ...] = ()  # pilots held at each hand-over of the window
    good: int = 0  # hand-overs in time since late_s
    in_vain: tuple[str, ...] = ()  # jobs already counted; each counts once
    has_parts: bool = False  # a pilot of these hand-overs had less than a node
    ADDED: ClassVar = frozenset({"has_parts"})


def record_hand_over(
    state: BackOff, done: HandOver | Vain, rule: Rule, *, held_nodes: int, now_s: float
) -> BackOff:
    """Record a hand-over, or a release in vain; an unmeasured one changes nothing.

    Args:
        state: so far.
        done: the hand-over or the release, of one pilot.
        rule: the promise.
        held_nodes: nodes, and parts of nodes, that were held; a pilot has one.
        now_s: seconds since the epoch.
    """
    if isinstance(done, Vain):
        job = done.family or done.job_id
        if done.why is not Why.DID_NOT_START or job in state.in_vain:
            return state
        state = replace(state, in_vain=(*state.in_vain, job)[-WINDOW:])
    elif done.delay_s is None:
        return state
    is_bad = isinstance(done, Vain) or _is_late(done, rule)
    window = (*state.window, is_bad)[-WINDOW:]
    nodes_held = (*state.held, held_nodes)[-WINDOW:]
    late_s, good = state.late_s, state.good + 1
    if is_bad:
        late_s, good = now_s, 0
    has_parts = state.has_parts or done.gpus > 0
    state = replace(
        state, window=window, held=nodes_held, late_s=late_s, good=good, has_parts=has_parts
    )
    if not is_violated(window, rule) or state.level >= MAX_LEVEL:
        return state
    base_nodes = state.base_nodes
    if state.level == 0:
        base_nodes = max(1, *nodes_held)
    return BackOff(
        level=state.level + 1,
        base_nodes=base_nodes,
        changed_s=now_s,
        late_s=now_s,
        in_vain=state.in_vain,
        has_parts=state.has_parts,
    )


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


def is_violated(window: tuple[bool, ...], rule: Rule) -> bool:
    """Return whether the last hand-overs break the promise."""
    late = sum(window)
    return late >= MIN_LATE and late > (1.0 - rule.share) * len(window)


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
