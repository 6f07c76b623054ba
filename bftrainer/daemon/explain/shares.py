"""Explains which limit or whose fair share keeps a trainer waiting, or small. Pure.

Called by ``sizes``.
"""

from __future__ import annotations

from collections.abc import Sequence

from bftrainer.decide.caps import limits_on
from bftrainer.decide.fair_share import patience_s, used_now
from bftrainer.model.decision import Plan, Settings
from bftrainer.model.trainer import TrainerRecord, TrainerSpec

NODE_H = 3600.0


def limit_sentences(
    record: TrainerRecord, plan: Plan, settings: Settings, queue: Sequence[TrainerRecord]
) -> list[str]:
    """Say which limits of its user or account keep it from having more nodes."""
    limits, found = settings.limits, list[str]()
    has = sum([one == record.trainer_id for one in plan.assignment.values()])
    step = 1 if has else record.spec.n_min
    for name, most, key in limits_on(record.spec, limits):
        members = {
            one.trainer_id for one in queue if (name, most, key) in limits_on(one.spec, limits)
        }
        used = sum([one in members for one in plan.assignment.values()])
        if record.spec.n_min > most:
            found.append(
                f"It never starts: it needs {record.spec.n_min} nodes (n_min) and the policy allows"
                f" {name} {most} at once ({key})."
            )
        elif used + step > most and has < record.spec.n_max:
            found.append(
                f"The trainers of {name} have {used} node{'s' if used != 1 else ''}, and the policy"
                f" allows {most} at once ({key})."
            )
    return found


def fair_share_sentences(
    record: TrainerRecord, plan: Plan, settings: Settings, queue: Sequence[TrainerRecord]
) -> list[str]:
    """Say why it is the turn of others, if fair share decides that."""
    usage, half_life_s = plan.memory.usage, settings.fair_share_half_life_s
    if half_life_s is None or usage.at_s is None or record.trainer_id in plan.order:
        return []
    used = used_now(usage, half_life_s, usage.at_s)
    spec, runs = record.spec, frozenset(plan.assignment.values())

    def of(spec: TrainerSpec) -> float:
        return used.get(spec.account, {}).get(spec.user, 0.0) / NODE_H

    # Without names: users may not be allowed to see those of others (visibility).
    others = [of(one.spec) for one in queue if one.trainer_id in runs]
    account_h = sum(used.get(spec.account, {}).values()) / NODE_H
    found = [
        "It is the turn of others by fair share: user"
        f" {spec.user} has used {of(spec):.1f} node-hours"
        + (f", account {spec.account} {account_h:.1f}" if spec.account else "")
        + (f", those who have nodes {min(others):.1f} to {max(others):.1f}" if others else "")
        + f"; half is forgotten in {half_life_s / NODE_H:g} h."
    ]
    wait = usage.waits.get(spec.account, {}).get(spec.user)
    if wait is not None and wait.turn_ends_s is None:
        n_users = len({(one.spec.account, one.spec.user) for one in queue})
        left_s = max(0.0, wait.since_s + patience_s(n_users, half_life_s) - usage.at_s)
        found.append(f"At the latest in {left_s / NODE_H:.1f} h {spec.user} comes first.")
    return found
