"""Summarises node time for ``bftrainer account``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bftrainer.daemon.accounting.records import day_of
from bftrainer.model.account import COLUMNS, AccountLine, AccountReport, Asked, NodeTime, Whose
from bftrainer.site.policy.model import SitePolicy

Rows = Iterable[tuple[Whose, NodeTime]]


@dataclass(slots=True)
class _Group:
    time: NodeTime = field(default_factory=NodeTime)
    by_type: dict[str, float] = field(default_factory=dict)  # harvested_s

    def add(self, whose: Whose, time: NodeTime) -> None:
        self.time += time
        known_s = self.by_type.get(whose.node_type, 0.0)
        self.by_type[whose.node_type] = known_s + time.harvested_s

    def energy_kwh(self, watts: Mapping[str, float]) -> float | None:
        """Return what the nodes draw by the policy; None: it does not say it of all types."""
        used = {node_type: s for node_type, s in self.by_type.items() if s > 0.0}
        if not watts or not used.keys() <= watts.keys():
            return None
        return sum(watts[node_type] * s for node_type, s in used.items()) / 3.6e6


def make_report(
    rows: Rows,
    asked: Asked,
    policy: SitePolicy,
    *,
    since_s: float,
    until_s: float,
) -> AccountReport:
    """Sum up.

    Args:
        rows: all that is known.
        asked: which of it, and how it is told apart.
        policy: of the site: its time zone, and what nodes draw.
        since_s: figures are complete from then on.
        until_s: everything until then is counted.
    """
    until, watts = asked.until or day_of(until_s, policy.time_zone), policy.watts_per_node_type
    chosen = [
        (whose, time)
        for whose, time in rows
        if asked.since <= whose.day <= until and asked.user in ("", whose.user)
    ]
    groups: dict[tuple[str, ...], _Group] = {}
    whole = _Group()
    for whose, time in chosen:
        groups.setdefault(_key(whose, asked.by), _Group()).add(whose, time)
        whole.add(whose, time)
    return AccountReport(
        by=asked.by,
        since=asked.since or min((whose.day for whose, _ in chosen), default=until),
        until=until,
        complete_since_s=since_s,
        counted_until_s=until_s,
        lines=tuple(_line(asked.by, key, groups[key], watts) for key in sorted(groups)),
        total=_line((), (), whole, watts),
        user=asked.user,
    )


def _key(whose: Whose, by: Sequence[str]) -> tuple[str, ...]:
    named = {
        "user": whose.user,
        "account": whose.account,
        "trainer": whose.trainer_id,
        "day": whose.day,
    }
    return tuple(named[column] for column in by)


def _line(
    by: Sequence[str], key: Sequence[str], group: _Group, watts: Mapping[str, float]
) -> AccountLine:
    named = {**dict.fromkeys(COLUMNS, ""), **dict(zip(by, key, strict=True))}
    time = group.time
    return AccountLine(
        **named,
        harvested_h=time.harvested_s / 3600.0,
        lost_h=time.lost_s / 3600.0,
        redone_h=time.redone_s / 3600.0,
        warm_up_h=time.warm_up_s / 3600.0,
        idle_h=time.idle_s / 3600.0,
        given_back_h=time.returned_s / 3600.0,
        pilots=time.pilots,
        pilots_given_back=time.given_back,
        pilots_preempted=time.preempted,
        energy_kwh=group.energy_kwh(watts),
    )
