"""Frozen situations → the decision core → frozen plans: the only module that knows the core.

A rebuilt core plugs in with two functions: ``input_of`` makes what it decides on of a frozen
situation, ``plan_of`` makes a frozen plan of what it decided. ``decided`` calls it between
the two. What writes situations is ``recorded``, which goes with today's journals.

A situation is a JSON object; ``_s`` are seconds, of the epoch where they are no span.

* ``now_s``, ``looked_s`` and ``is_new_look``; ``unread``: a sentence per source that failed.
* ``nodes``, ``partitions``, ``reservations``, ``scheduler`` (its last cycle, how it plans).
* ``pending_jobs`` (``start_s`` and ``planned_nodes``: the scheduler's plan), ``running_jobs``,
  ``announced_jobs`` (submitted since the look), ``pilot_jobs``. null: that source failed.
* ``pilots`` as we know them, ``trainers`` in order of submission, ``training`` (node →
  trainer, observed), ``speeds``, ``cooling``, ``settled_until_s``, ``settings``, ``may_claim``.
* ``memory``: node → trainer as decided last, looks in which a node was idle, since when it is
  left to the queue, since when nobody wants it, slow nodes, who is left out.
* ``memory_of_rules``: what rules of that time remembered, as they wrote it. A core that does
  not have such a rule has no field for it.

What a record does not say is unknown, none or no. Keys that the core has no field for are
passed over: a rule may be deleted, what it read stays in the files.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from bftrainer.decide.isolation import decide_surely
from bftrainer.decide.policies.base import load_policy
from bftrainer.model.canonical import from_plain
from bftrainer.model.cluster import (
    Job,
    JobState,
    Node,
    NodeLeft,
    NodeState,
    Partition,
    Reservation,
    SchedulerCycle,
    Snapshot,
    Way,
)
from bftrainer.model.decision import (
    Cooling,
    DecisionInput,
    Kind,
    LeftOut,
    Memory,
    PilotView,
    Plan,
    Release,
    Replacing,
    Settings,
    SlowNode,
)
from bftrainer.model.trainer import (
    MeasuredCosts,
    SizeThroughput,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from milp.problem import Curve, Objective
from slurm_plugins.fields import ways_of
from slurm_plugins.job_requests import judged
from tests.support.frozen.lines import Plain

T = TypeVar("T")


def decided(situation: Plain) -> Plain:
    """Return what the core decides now."""
    given = input_of(situation)
    return plan_of(decide_surely(given, load_policy(given.settings.policy)), situation)


# ---- frozen situation → input ----------------------------------------------------------


def input_of(situation: Plain) -> DecisionInput:
    """Return what the core decides on."""
    cooling: Mapping[str, Plain] = situation["cooling"]
    return _made(
        DecisionInput,
        situation,
        snapshot=_snapshot(situation),
        is_new_snapshot=situation["is_new_look"],
        pilots=tuple(_made(PilotView, pilot) for pilot in situation["pilots"]),
        trainers=tuple(map(_trainer, situation["trainers"])),
        settings=_settings(situation["settings"]),
        memory=_memory(situation["memory"], situation["memory_of_rules"]),
        cooling={node: _made(Cooling, one) for node, one in cooling.items()},
    )


def _made(cls: Callable[..., T], plain: Plain, **others: object) -> T:
    """Build a record; ``others`` take the place of what is no plain value."""
    known = {field.name for field in fields(cast("Any", cls))}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items() if k in known}
    return cls(**{**values, **others})


def _snapshot(situation: Plain) -> Snapshot:
    jobs = None
    if situation["pending_jobs"] is not None:
        others = situation["running_jobs"] + situation["pilot_jobs"]
        looked = [_job(job) for job in others]
        looked += [_job(job, "pending") for job in situation["pending_jobs"]]
        announced = [_job(job, "pending") for job in situation["announced_jobs"]]
        jobs = (*_judged(looked), *announced)
    nodes, reservations = situation["nodes"], situation["reservations"]
    scheduler: Plain = situation["scheduler"]
    return _made(
        Snapshot,
        scheduler,
        taken_at_s=situation["looked_s"],
        nodes=None if nodes is None else tuple(map(_node, nodes)),
        jobs=jobs,
        reservations=None
        if reservations is None
        else tuple(_made(Reservation, one) for one in reservations),
        cycle=_made(SchedulerCycle, scheduler) if "ended_s" in scheduler else None,
        failures=tuple(situation["unread"]),
        partitions=tuple(_made(Partition, one) for one in situation["partitions"]),
    )


def _judged(looked: list[Job]) -> tuple[Job, ...]:
    """Say who may start, as the adapter does: older records leave that to the core."""
    is_said = any(not job.is_entitled for job in looked)
    return tuple(looked) if is_said else judged(looked)


def _job(job: Plain, state: str = "") -> Job:
    """Make a job; older records have texts of Slurm's where there are data now."""
    others: Plain = {"wants": tuple(_way(way) for way in job.get("wants", ()))}
    if "partition" in job:
        base = job["job_id"].partition("_")[0].partition("+")[0]
        others = {
            "family": base if base != job["job_id"] else "",
            "partitions": tuple(job["partition"].split(",")),
            "reservations": tuple(filter(None, job.get("reservation", "").split(","))),
            "wants": ways_of(job.get("features", "")),
        }
    return _made(Job, job, state=JobState(state or job["state"]), **others)


def _way(way: Plain) -> Way:
    counted = tuple((tuple(rule), count) for rule, count in way.get("counted", ()))
    return Way(everywhere=tuple(way.get("everywhere", ())), counted=counted)


def _node(node: Plain) -> Node:
    left = _made(NodeLeft, node["left"]) if "left" in node else None
    return _made(Node, node, state=NodeState(node["state"]), left=left)


def _trainer(trainer: Plain) -> TrainerRecord:
    told: list[Plain] = trainer["measured"]
    return TrainerRecord(
        trainer_id=trainer["trainer_id"],
        spec=_made(
            TrainerSpec,
            trainer,
            name=trainer["trainer_id"],
            script="",
            curve=_curve(trainer["curve"]),
            utility=_curve(trainer["utility"]),
        ),
        state=TrainerState(trainer["state"]),
        submitted_s=trainer["submitted_s"],
        progress=TrainerProgress(size=trainer["size"]),
        costs=MeasuredCosts(
            rescale_up_s=trainer["rescale_up_s"],
            rescale_down_s=trainer["rescale_down_s"],
            samples_per_s_by_size=tuple((one["size"], one["samples_per_s"]) for one in told),
            throughput=tuple(
                SizeThroughput(size=one["size"], told_error=one["relative_error"])
                for one in told
                if "relative_error" in one
            ),
        ),
    )


def _curve(curve: Plain | None) -> Curve | None:
    return None if curve is None else _made(Curve, curve)


def _settings(settings: Plain) -> Settings:
    return _made(Settings, settings, objective=Objective(settings["objective"]))


def _memory(memory: Plain, of_rules: Plain) -> Memory:
    known = {field.name for field in fields(Memory)}
    rules = {name: plain for name, plain in of_rules.items() if name in known}
    return replace(
        from_plain({"type": "Memory", **rules}, Memory),
        assignment=memory["assignment"],
        idle_seen=memory["idle_looks"],
        held_off=memory["left_to_queue_since_s"],
        unused_since=memory["unwanted_since_s"],
        slow_nodes={k: _made(SlowNode, one) for k, one in memory["slow_nodes"].items()},
        replacing={k: _made(Replacing, one) for k, one in memory["replacing"].items()},
        left_out={
            k: _made(LeftOut, one, kind=Kind(one["kind"])) for k, one in memory["left_out"].items()
        },
    )


# ---- plan → frozen plan ----------------------------------------------------------------


def plan_of(plan: Plan, situation: Plain) -> Plain:
    """Return what was decided.

    ``give_backs`` make room for a job, ``cancels`` are of pilots that still wait, ``releases``
    are all others. ``ends_s``: until when a node of the pool may be used.
    """
    held = {pilot["pilot_id"] for pilot in situation["pilots"] if pilot["is_held"]}
    others = [release for release in plan.releases if not release.for_job]
    return {
        "give_backs": _released(release for release in plan.releases if release.for_job),
        "releases": _released(release for release in others if release.pilot_id in held),
        "cancels": _released(release for release in others if release.pilot_id not in held),
        "claims": sorted(map(said, plan.claims), key=lambda claim: str(claim["node"])),
        "assignment": dict(sorted(plan.assignment.items())),
        "reserve": sorted(plan.reserve),
        "ends_s": {n.name: n.usable_until_s for n in plan.pool if n.usable_until_s is not None},
        "not_used": dict(sorted(plan.not_used.items())),
        "objective": None if plan.allocation is None else plan.allocation.objective,
        "trouble": plan.trouble,
    }


def _released(releases: Iterable[Release]) -> list[Plain]:
    return sorted(map(said, releases), key=lambda release: str(release["node"]))


def said(value: Any, *, is_whole: bool = False) -> Any:
    """Return plain values; of a record what is not at its default, or all if ``is_whole``."""
    if is_dataclass(value):
        usual = {} if is_whole else {field.name: field.default for field in fields(value)}
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        return {k: said(v) for k, v in values.items() if v != usual.get(k, MISSING)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: said(one) for key, one in sorted(value.items())}
    if isinstance(value, tuple):
        return [said(one) for one in value]
    return value
