"""An accepted submission and an innocent trainer, decided on together.

Used by the property test of admission and by the fuzz door of submissions.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.api.admission import check_spec
from bftrainer.decide.isolation import decide_surely, unfit
from bftrainer.decide.policies.milp import POLICY
from bftrainer.model.decision import DecisionInput, Memory, Plan, Settings
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from tests.support.snapshots import T0, idle_nodes, record, snapshot

NODES = 12
INNOCENT = 3  # nodes of the innocent at most
PLAIN = TrainerSpec(name="plain", user="bob", script="/s.py")


def queued(spec: TrainerSpec, trainer_id: str) -> TrainerRecord:
    return TrainerRecord(
        trainer_id=trainer_id, spec=spec, state=TrainerState.QUEUED, submitted_s=T0
    )


def decided(*trainers: TrainerRecord, settings: Settings, n_nodes: int = NODES) -> Plan:
    """Decide once, with nobody running yet."""
    given = DecisionInput(
        now_s=T0,
        snapshot=snapshot(idle_nodes(n_nodes)),
        is_new_snapshot=True,
        pilots=(),
        trainers=trainers,
        settings=settings,
        memory=Memory(),
    )
    return decide_surely(given, POLICY)


def harm_of(spec: TrainerSpec, settings: Settings) -> str:
    """Say what an accepted submission does to an innocent trainer behind it; "": nothing.

    There are nodes enough for both, unless it asks for all: then a plain trainer of the same
    sizes in its place is what it is compared with.

    Raises:
        UsageError: the submission is refused.
    """
    check_spec(spec)
    if why := unfit(queued(spec, "t1"), settings):
        return f"accepted, and unfit: {why}"
    innocent = record("t2", n_max=INNOCENT)
    plan = decided(queued(spec, "t1"), innocent, settings=settings)
    if plan.trouble or plan.memory.left_out:
        return f"{plan.trouble} {plan.memory.left_out}"
    has = plan.allocation.sizes().get("t2", 0) if plan.allocation else 0
    plain = replace(PLAIN, n_min=spec.n_min, n_max=spec.n_max)
    other = decided(queued(plain, "t1"), innocent, settings=settings)
    would_have = other.allocation.sizes().get("t2", 0) if other.allocation else 0
    is_room = spec.n_max + INNOCENT <= NODES or spec.n_min > NODES
    if is_room and has != would_have:
        return f"the innocent has {has} nodes, beside a plain trainer {would_have}"
    return ""
