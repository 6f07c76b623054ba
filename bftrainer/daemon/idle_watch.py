"""The gaps that were too short to be lent, as the decisions of a daemon saw them.

GPUs that are lent one by one count as their share of a node, and each as a pilot of its own. The
watch is fed with each decision, and read by ``views``. It is no part of a decision and begins anew
with each daemon, and when the site changes ``min_gap_s`` or ``gap_margin_s``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bftrainer.decide.division import divided
from bftrainer.decide.end_cost import end_cost_s
from bftrainer.decide.short_gaps import HOUR_S, Gap, lent_s, pairs_to_try
from bftrainer.model.census import NodeCensus, census_of
from bftrainer.model.decision import DecisionInput, Plan, Settings
from bftrainer.model.parts import share_of_host
from bftrainer.model.queue import left_s_in
from bftrainer.model.site import GapTrial, ShortGaps
from bftrainer.site.policy.model import SitePolicy

MOST_BETWEEN_S: Final = 60.0  # two decisions; more was a sleep, or nothing was seen
Pair = tuple[float, float]  # min_gap_s, gap_margin_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A gap that has not ended."""

    share: float  # of a node
    since_s: float
    left_s: float
    waits_s: float
    lead_s: float
    is_after_pilot: bool


class IdleWatch:
    """One per daemon."""

    def __init__(self) -> None:
        self._in_force: Pair = (0.0, 0.0)
        self._idle_s = self._near_s = self._seen_s = 0.0
        self._last_s: float | None = None
        self._idle_nodes = 0.0
        self._lent: set[str] = set()
        self._begun: dict[str, _Begun] = {}
        self._more_s: dict[Pair, float] = {}
        self._more_pilots: dict[Pair, int] = {}

    def adopt_policy(self, policy: SitePolicy) -> None:
        """Begin anew if a policy that was reloaded has other settings."""
        if (in_force := (policy.min_gap_s, policy.gap_margin_s)) != self._in_force:
            self._begin_anew(in_force)

    def saw(self, given: DecisionInput, plan: Plan) -> None:
        """Add what a decision saw."""
        given = divided(given)  # gaps are of parts where GPUs are lent one by one
        settings, now_s = given.settings, given.now_s
        if (in_force := (settings.min_gap_s, settings.gap_margin_s)) != self._in_force:
            self._begin_anew(in_force)
        self._count_until(now_s)
        snapshot = given.snapshot
        if snapshot.nodes is None or snapshot.jobs is None:
            self._idle_nodes, self._begun = 0.0, {}
            return
        census = census_of(snapshot, given.pilots)
        lent = set(census.ours)
        idle = (census.free | lent) - census.taken
        near = {
            node: left_s
            for node, why in plan.not_used.items()
            if node in idle and node not in lent and (left_s := left_s_in(why)) is not None
        }
        for node in self._begun.keys() - near.keys():
            self._end(self._begun.pop(node), now_s)
        begins = near.keys() - self._begun.keys()
        waits_s, lead_s = 0.0, end_cost_s(plan.memory)
        if begins and census.has_startable_jobs:
            waits_s = settings.cycle_s
        for node in begins:
            self._begun[node] = _Begun(
                share=_share_of_node(census, node),
                since_s=now_s,
                left_s=near[node],
                waits_s=waits_s,
                lead_s=lead_s,
                is_after_pilot=node in self._lent,
            )
        self._idle_nodes = sum([_share_of_node(census, name) for name in sorted(idle)])
        self._lent = lent

    def short_gaps(self, settings: Settings) -> ShortGaps | None:
        """Return the figures; None: no node was idle."""
        if not self._idle_s:
            return None
        trials: list[GapTrial] = []
        for pair, more_s in self._more_s.items():
            min_gap_s, gap_margin_s = pair
            trials.append(
                GapTrial(
                    min_gap_s=min_gap_s,
                    gap_margin_s=gap_margin_s,
                    more_node_h=more_s / HOUR_S,
                    more_pilots=self._more_pilots[pair],
                )
            )
        min_gap_s, gap_margin_s = self._in_force
        return ShortGaps(
            hours=self._seen_s / HOUR_S,
            idle_node_h=self._idle_s / HOUR_S,
            near_node_h=self._near_s / HOUR_S,
            min_gap_s=min_gap_s,
            gap_margin_s=gap_margin_s,
            trials=tuple(trials),
            cycle_s=settings.cycle_s,
        )

    def _begin_anew(self, in_force: Pair) -> None:
        pairs = pairs_to_try(*in_force)
        self._in_force = in_force
        self._idle_s = self._near_s = self._seen_s = 0.0
        self._last_s, self._idle_nodes, self._lent, self._begun = None, 0.0, set(), {}
        self._more_s = dict.fromkeys(pairs, 0.0)
        self._more_pilots = dict.fromkeys(pairs, 0)

    def _count_until(self, now_s: float) -> None:
        passed_s = 0.0
        if self._last_s is not None:
            passed_s = max(0.0, now_s - self._last_s)
        self._last_s = now_s
        if passed_s > MOST_BETWEEN_S:
            self._begun = {}
            return
        self._seen_s += passed_s
        self._idle_s += passed_s * self._idle_nodes
        self._near_s += passed_s * sum([begun.share for begun in self._begun.values()])

    def _end(self, begun: _Begun, now_s: float) -> None:
        gap = Gap(
            length_s=now_s - begun.since_s,
            left_s=begun.left_s,
            waits_s=begun.waits_s,
            lead_s=begun.lead_s,
            is_after_pilot=begun.is_after_pilot,
        )
        usual_s = lent_s(gap, *self._in_force)
        for pair in self._more_s:
            other_s = lent_s(gap, *pair)
            self._more_s[pair] += begun.share * (other_s - usual_s)
            is_new = other_s > 0.0 and usual_s <= 0.0
            self._more_pilots[pair] += is_new and not gap.is_after_pilot


def _share_of_node(census: NodeCensus, name: str) -> float:
    """Return for how much of a node a part counts; a pilot's node may be missing in a look."""
    part = census.by_name.get(name)
    if part is None:
        return 1.0
    return share_of_host(part)
