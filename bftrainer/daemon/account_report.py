"""Sums up node-hours and GPU-hours for users: by user, account, trainer or day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bftrainer.model.node_request import gpus_of_type
from bftrainer.model.reports import (
    COLUMNS,
    AccountLine,
    AccountReport,
    Asked,
    NodeTime,
    Whose,
    day_of,
)
from bftrainer.site.policy.model import SitePolicy

HOUR_S: Final = 3600.0
JOULES_PER_KWH: Final = 3.6e6
Rows = Iterable[tuple[Whose, NodeTime]]


@dataclass(slots=True)
class _Group:
    time: NodeTime = field(default_factory=NodeTime)
    by_type: dict[str, float] = field(default_factory=dict)  # harvested_s

    def add(self, owner: Whose, time: NodeTime) -> None:
        self.time += time
        before_s = self.by_type.get(owner.node_type, 0.0)
        self.by_type[owner.node_type] = before_s + time.harvested_s

    @property
    def gpu_h(self) -> float:
        """GPU-hours: what was harvested of nodes, times the GPUs that nodes of the type have."""
        gpu_s = 0.0
        for node_type, harvested_s in self.by_type.items():
            gpu_s += gpus_of_type(node_type) * harvested_s
        return gpu_s / HOUR_S

    def energy_kwh(self, watts: Mapping[str, float]) -> float | None:
        """Return what the nodes draw by the policy; None: it does not say it of all types."""
        if not watts:
            return None
        joules = 0.0
        for node_type, harvested_s in self.by_type.items():
            if harvested_s > 0.0:
                if node_type not in watts:
                    return None
                joules += watts[node_type] * harvested_s
        return joules / JOULES_PER_KWH


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
    groups: dict[tuple[str, ...], _Group] = {}
    total, first_day = _Group(), until
    for owner, node_time in rows:
        if asked.since <= owner.day <= until and asked.user in ("", owner.user):
            groups.setdefault(_key(owner, asked.by), _Group()).add(owner, node_time)
            total.add(owner, node_time)
            first_day = min(first_day, owner.day)
    return AccountReport(
        by=asked.by,
        since=asked.since or first_day,
        until=until,
        complete_since_s=since_s,
        counted_until_s=until_s,
        lines=tuple(_line(asked.by, key, groups[key], watts) for key in sorted(groups)),
        total=_line((), (), total, watts),
        user=asked.user,
    )


def _key(owner: Whose, by: Sequence[str]) -> tuple[str, ...]:
    columns = {
        "user": owner.user,
        "account": owner.account,
        "trainer": owner.trainer_id,
        "day": owner.day,
    }
    return tuple(columns[name] for name in by)


def _line(
    by: Sequence[str], key: Sequence[str], group: _Group, watts: Mapping[str, float]
) -> AccountLine:
    columns = {**dict.fromkeys(COLUMNS, ""), **dict(zip(by, key, strict=True))}
    time = group.time
    return AccountLine(
        **columns,
        harvested_h=time.harvested_s / HOUR_S,
        lost_h=time.lost_s / HOUR_S,
        redone_h=time.redone_s / HOUR_S,
        warm_up_h=time.warm_up_s / HOUR_S,
        idle_h=time.idle_s / HOUR_S,
        given_back_h=time.returned_s / HOUR_S,
        pilots=time.pilots,
        pilots_given_back=time.given_back,
        pilots_preempted=time.preempted,
        energy_kwh=group.energy_kwh(watts),
        gpu_h=group.gpu_h,
    )
