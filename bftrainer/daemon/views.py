"""Views of the daemon's state for users."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from bftrainer.api.privacy import no_trainer
from bftrainer.batch.clock import STEADY, now_s
from bftrainer.daemon.decider import DECISION
from bftrainer.daemon.explain.constraints import constraint_sentences, effects_on, what_if
from bftrainer.daemon.explain.lives import is_vain, loss_sentences, restart_sentences, vain_sentence
from bftrainer.daemon.explain.nodes import (
    cut_off_sentence,
    slow_sentences,
    straggler_sentences,
    true_cause,
    unheard_sentence,
)
from bftrainer.daemon.explain.sizes import (
    Circumstances,
    explain_trainer,
    gap_share,
    impossible,
    not_proven,
    policy_terms,
)
from bftrainer.daemon.explain.trainers import (
    backend_sentences,
    batch_sentences,
    divergence_sentences,
    near_speeds,
    planned_speed,
    trouble,
    trouble_sentences,
)
from bftrainer.daemon.harm.backoff import sentence
from bftrainer.daemon.metrics import MetricSample, daemon_figures, use_figures, user_figures
from bftrainer.daemon.state import DaemonState
from bftrainer.decide import eligible, end_cost
from bftrainer.decide.exclusion import sentences as left_out_sentences
from bftrainer.decide.horizon import longest_rescale_s
from bftrainer.decide.isolation import unfit
from bftrainer.decide.what_if import WhatIf
from bftrainer.fleet.pilots.refusals import waiting, waiting_sentences
from bftrainer.fleet.trainers import unreachable
from bftrainer.model.cluster import FREE, JobState, Node, NodeState
from bftrainer.model.decision import Plan
from bftrainer.model.reports import AccountReport, Asked, HarmReport
from bftrainer.model.study import Seen
from bftrainer.model.timeline import TimelineView
from bftrainer.model.trainer import TrainerRecord, TrainerState
from bftrainer.model.views import (
    Explanation,
    LogFile,
    NodeGpus,
    NodeView,
    StatusView,
    TrainerView,
    idle_nodes,
)

SHOWN_LATE = 3  # agents of one trainer
SHOWN_WORKERS = 8  # of one trainer, with their histories


class DaemonViews:
    """The part of ``bftrainer.api.service.Service`` that only looks."""

    def __init__(self, state: DaemonState) -> None:
        self._state, self._agents, self._trainers = state, state.plane.agents, state.plane.trainers
        # The last plan explained, and its decision, taken again.
        self._repeated: tuple[Plan | None, WhatIf | None] = None, None
        state.metrics.add(self._figures)

    def status(self) -> StatusView:
        """Return the daemon's state."""
        state, seen, pilots = self._state, self._state.seen, self._state.pilots
        snapshot, nodes, held = seen.snapshot, self._nodes(), len(self._agents.held)
        by_node = pilots.by_node().items()
        held_nodes = {n for n, pilot in by_node if pilot.record.pilot_id in self._agents.held}
        return StatusView(
            incarnation=state.incarnation,
            pid=os.getpid(),
            started_s=state.started_s,
            batch_system=state.batch_system,
            observed="present" if snapshot and snapshot.is_complete else "unknown",
            failures=self._failures(),
            policy_hash=state.in_force.policy_hash,
            nodes_total=len(nodes),
            nodes_idle=idle_nodes(nodes, held_nodes),
            nodes_held=held,
            nodes_requested=len(pilots.pilots) - held,
            decisions=seen.decisions,
            last_decision_ms=seen.decision_ms,
            last_decision_s=seen.decided_s,
            rescales=sum(r.rescales for r in self._trainers.records.values()),
            give_backs=pilots.give_backs,
            preemptions=pilots.preemptions,
            trainers=self.trainers(),
            polling=state.poller.figures(),
            back_off=sentence(state.harm.state),
            slow_nodes=tuple(self._slow_nodes().values()),
            cooling_nodes=tuple(self._cooling_nodes().values()),
            cuts=tuple(f"{trainer_id}: {why}" for trainer_id, why in self._cuts().items()),
            left_out=left_out_sentences(seen.memory.left_out),
            measured=replace(
                end_cost.measured(seen.memory, state.in_force.settings),
                t_fwd_s=state.in_force.settings.t_fwd_s,
                rescale_s=longest_rescale_s(self._trainers.records.values()),
                short_gaps=state.idle_watch.short_gaps(state.in_force.settings),
            ),
            draining=state.draining.sentence(),
            policy_notes=state.policy_notes(),
            policy_files=state.policy_files,
            batch_pairs=state.batch_pairs,
            late_agents=tuple(state.late.by_node().values()),
            slept=state.awakenings.sentence(),
            not_proven=not_proven(seen.plan.allocation if seen.plan else None),
        )

    def nodes(self) -> tuple[NodeView, ...]:
        """Return every node of the last snapshot."""
        waits, late = self._waiting_pilots(), self._state.late.by_node()
        gpus = {told.node: told.use for i in self._trainers.trainers for told in self._gpus(i)}
        views = (self._node(n, waits, late) for n in self._nodes())
        return tuple(replace(view, gpu_use=gpus.get(view.name)) for view in views)

    def timeline(self, seen: Seen | None) -> TimelineView:
        """Return the uses of all nodes of late, or what is new to who has seen this daemon's."""
        return self._state.uses.timeline(seen)

    async def news(self, seen: Seen, limit_s: float) -> None:
        """Wait until something is other than it was seen, or the time is over."""
        await self._state.uses.news(seen, limit_s)

    def trainers(self) -> tuple[TrainerView, ...]:
        """Return all trainers in order of submission."""
        return self._views(self._trainers.records.values())

    def trainer(self, trainer_id: str) -> TrainerView:
        """Return one trainer; BFT-1004 if there is none."""
        return self._view(self._record(trainer_id))

    def explain(self, trainer_id: str) -> Callable[[], Explanation]:
        """Collect why the trainer has this size or does not run; the result says it, anywhere."""
        record = self._record(trainer_id)
        given, plan = self._state.seen.given, self._state.seen.plan
        policy, circumstances = self._state.in_force.allocate, self._circumstances(record)
        view, further_sentences = self._explanation(record, circumstances)

        def say() -> Explanation:
            explained_plan, decision = self._repeated
            if explained_plan is not plan:
                decision = what_if(given, plan, policy)
                self._repeated = plan, decision
            effects = effects_on(record, decision, circumstances)
            sentences = *view.sentences, *constraint_sentences(effects), *further_sentences
            its_terms = policy_terms(decision).get(trainer_id, ())
            return replace(view, sentences=sentences, terms=its_terms, constraints=effects)

        return say

    def _explanation(
        self, record: TrainerRecord, circumstances: Circumstances
    ) -> tuple[Explanation, tuple[str, ...]]:
        """Return what is told without taking the decision again, and the sentences after that."""
        state, trainer_id = self._state, record.trainer_id
        plan = state.seen.plan
        its_view = self._view(record)
        allocation = plan.allocation if plan else None
        marginal = allocation.marginals.get(trainer_id) if allocation else None
        settings = state.in_force.settings
        stragglers = straggler_sentences(record, plan, settings, its_view.observed_nodes)
        is_decided = circumstances.is_decided and record.cancelled_s is None
        further_sentences = (
            *(stragglers if is_decided else ()),
            *backend_sentences(record),
            *batch_sentences(record),
            *self._fault_sentences(record),
            *([why] if (why := vain_sentence(record, now_s())) else []),
            *restart_sentences(record),
            *loss_sentences(record),
            *(() if record.state.is_final else (*self._stops(), *self._failures(record))),
            *self._histories(trainer_id),
        )
        view = Explanation(
            trainer_id=trainer_id,
            state=record.state.value,
            planned_size=len(its_view.planned_nodes),
            observed_size=len(its_view.observed_nodes),
            sentences=(
                *trouble_sentences(
                    record, state.in_force.policy.failure_budget, state.plane.steady()
                ),
                *self._unheard(record).values(),
                *self._cuts(of=trainer_id).values(),
                *self._not_saved(trainer_id),
                *divergence_sentences(record),
                *record.remark_sentences,
                *(self._pilot_sentences(record, its_view.planned_nodes) if is_decided else ()),
                *self._size_sentences(record, len(its_view.observed_nodes), circumstances),
            ),
            decision_id=state.journal.last_seq(DECISION),
            node_price=allocation.node_price if allocation else 0.0,
            gain_of_one_more=marginal.gain_of_one_more if marginal else None,
            loss_of_one_fewer=marginal.loss_of_one_fewer if marginal else None,
            policy=state.in_force.policy.policy,
            speeds=()
            if unfit(record, state.in_force.settings)  # nothing can be computed with its numbers
            else near_speeds(
                record, state.in_force.settings, len(its_view.planned_nodes), marginal
            ),
            t_fwd_s=state.in_force.settings.t_fwd_s,
            unheard_nodes=its_view.unheard_nodes,
        )
        return view, further_sentences

    def _histories(self, trainer_id: str) -> tuple[str, ...]:
        """Say how its first few workers, and their pilots, came to be what they are."""
        trainer, pilots = self._trainers.trainers.get(trainer_id), self._state.pilots.pilots
        there = [w for w in trainer.machine.workers.values() if w.is_alive] if trainer else []
        ahead_s = now_s() - self._state.plane.steady()
        found = [(w, pilots[w.pilot_id]) for w in there if w.pilot_id in pilots][:SHOWN_WORKERS]
        return tuple(
            f"{worker.node}: worker {worker.worker_id} {worker.in_words(ahead_s)}; pilot"
            f" {worker.pilot_id} {pilot.in_words()}."
            for worker, pilot in found
        )

    def _pilot_sentences(
        self, record: TrainerRecord, planned_nodes: Sequence[str]
    ) -> tuple[str, ...]:
        """Say why its pilots are refused, or wait, or that their agents do not come."""
        if record.state.is_final:
            return ()
        state, waiting = self._state, self._waiting_pilots()
        late = self._late(planned_nodes)
        why = state.refusals.why_of(record)
        reasons = [waiting[node] for node in planned_nodes if node in waiting]
        return (*([why] if why else []), *waiting_sentences(reasons), *late)

    def _late(self, nodes: Collection[str]) -> list[str]:
        """Say of a few of these nodes that agents on them have not connected."""
        late = self._state.late.by_node()
        return [sentence for node, sentence in late.items() if node in nodes][:SHOWN_LATE]

    def _waiting_pilots(self) -> dict[str, str]:
        """Return why pilots are pending, in the batch system's words, by node."""
        state, snapshot = self._state, self._state.seen.snapshot
        jobs = (snapshot.jobs if snapshot else None) or ()
        reasons = {
            job.pilot_id: job.reason
            for job in jobs
            if job.pilot_id is not None and job.state is JobState.PENDING
        }
        pilots = state.pilots.by_node().items()
        return {
            node: reasons[pilot.record.pilot_id]
            for node, pilot in pilots
            if pilot.record.pilot_id in reasons
        }

    def _fault_sentences(self, record: TrainerRecord) -> tuple[str, ...]:
        """Say which nodes it failed on and does not use for a while."""
        return tuple(self._cooling_nodes(of=record.trainer_id).values())

    def _circumstances(self, record: TrainerRecord) -> Circumstances:
        """Return what counts more for it than the last decision."""
        return Circumstances(
            withheld=self._trainers.waiting.withheld().get(record.trainer_id, ""),
            settled=self._trainers.budget.in_words(record.trainer_id, now_s()),
            is_draining=self._state.draining.is_on,
            is_heard=not self._unheard(record),
        )

    def _size_sentences(
        self, record: TrainerRecord, observed_size: int, circumstances: Circumstances
    ) -> tuple[str, ...]:
        state = self._state
        queue = self._trainers.waiting.eligible()
        return explain_trainer(
            record,
            state.seen.plan,
            state.in_force.settings,
            queue,
            self._nodes(),
            observed_size,
            state.seen.given.now_s if state.seen.given else 0.0,
            circumstances=circumstances,
        )

    def logs(self, trainer_id: str) -> tuple[LogFile, ...]:
        """Return its log files, oldest first; reads users' files, so not in the event loop."""
        self._record(trainer_id)
        return self._trainers.log_files(trainer_id)

    def harm(self, since_s: float | None) -> HarmReport:
        """Summarise the effect on ordinary jobs since then; None: since the start."""
        by_ours_s = None if since_s is None else since_s - STEADY.wall_ahead_s()
        return self._state.harm.report(by_ours_s)

    def account(self, asked: Asked) -> Callable[[], AccountReport]:
        """Collect who used what; the result sums up, anywhere."""
        return self._state.accountant.report(asked)

    def metrics(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return self._state.metrics.text()

    def _figures(self) -> tuple[MetricSample, ...]:
        state, trainers = self._state, self._trainers
        plan, memory, used_s = state.seen.plan, state.seen.memory, state.accountant.used_s
        rule, training = state.harm.rule, trainers.occupancy().training
        gpus = {node.name: node.gpus for node in self._nodes()}
        values = {
            "nodes_pool": len(plan.pool) if plan else 0,
            "nodes_training": len(training),
            "gpus_held": sum(gpus.get(node, 0) for node in self._agents.held.values()),
            "gpus_training": sum(gpus.get(node, 0) for node in training),
            "pauses_total": trainers.pauses,
            "pause_seconds_total": trainers.paused_s,
            "lives_lost_total": trainers.lives_lost,
            "steps_lost_total": trainers.steps_lost.total(),
            "back_off_level": state.harm.state.level,
            "harm_slo_seconds": rule.limit_s,
            "harm_slo_ratio": rule.share,
            "nodes_slow": len(memory.slow_nodes),
            "nodes_cooling": len(self._cooling_nodes()),
            "mute_pilots": state.refusals.n_mute,
            "cut_trainers": len(self._cuts()),
            "vain_trainers": state.refusals.n_vain,
            "stragglers_found_total": trainers.speeds.found,
            "stragglers_replaced_total": trainers.speeds.replaced,
            "journal_writable": state.journal.trouble is None,
            "left_out": len(memory.left_out),
            "failed_decisions_total": state.failures.count,
            "decision_gap_ratio": gap_share(plan.allocation if plan else None),
            "sleeps_total": state.awakenings.count,
            "slept_seconds_total": state.awakenings.slept_s,
            "unreachable_agents": len(self._agents.away) + state.pilots.n_silent,
            "trainers_without_progress": sum(
                is_vain(record, now_s()) for record in trainers.records.values()
            ),
        }
        figures = daemon_figures(self.status(), values, state.plane.server.counts)
        figures += use_figures(used_s)
        if not state.in_force.policy.metrics_by_user:
            return figures
        records = trainers.records
        specs = [records[trainer_id].spec for trainer_id in training.values()]
        by_user = Counter((spec.user, spec.account) for spec in specs)
        return figures + user_figures(records.values(), by_user, used_s, trainers.steps_lost)

    def _slow_nodes(self) -> dict[str, str]:
        state = self._state
        return slow_sentences(state.seen.memory, state.in_force.settings, now_s())

    def _cooling_nodes(self, of: str = "") -> dict[str, str]:
        at_s = now_s()
        bad, left = self._trainers.quarantine.cooling(at_s), self._state.harm.cooling(at_s)
        return {
            name: f"{name}: {one.sentence(at_s)}"
            for name, one in {**bad, **left}.items()
            if of in ("", one.trainer_id)
        }

    def _cuts(self, of: str = "") -> dict[str, str]:
        """Say of trainers which of their nodes cannot reach each other."""
        trainers, now_s = self._trainers.trainers, self._state.plane.steady()
        found = {i: unreachable.sentence(t, now_s) for i, t in trainers.items() if of in ("", i)}
        return {trainer_id: why for trainer_id, why in found.items() if why}

    def _unheard(self, record: TrainerRecord) -> dict[str, str]:
        """Say of a parked trainer's last nodes that their agents are silent, by node."""
        if record.state is not TrainerState.PARKED:
            return {}
        state, now_s, found = self._state, self._state.plane.awake(), dict[str, str]()
        for pilot_id in self._trainers.last_pilots(record.trainer_id):
            pilot = state.pilots.pilots.get(pilot_id)
            if pilot is not None and pilot.unheard_s is not None:
                for_s, node = now_s - pilot.unheard_s, pilot.record.node
                left_s = None if pilot.is_leaving else state.pilots.unreachable_s - for_s
                found[node] = unheard_sentence(node, for_s, left_s)
        return found

    def _not_saved(self, trainer_id: str) -> tuple[str, ...]:
        trainer = self._trainers.trainers.get(trainer_id)
        if trainer is None:
            return ()
        return tuple(filter(None, (trainer.machine.not_saved, trainer.machine.passed_over)))

    def _stops(self) -> tuple[str, ...]:
        why = self._state.draining.sentence()
        return (why,) if why else ()

    def _failures(self, record: TrainerRecord | None = None) -> tuple[str, ...]:
        """Say what fails; for a trainer without what was said of its pilots."""
        state, snapshot = self._state, self._state.seen.snapshot
        found = snapshot.failures if snapshot else ("No snapshot has been taken yet.",)
        trouble = str(state.journal.trouble or "")
        refused = "" if record is not None else state.refusals.why
        return (
            *found,
            *(why for why in (self._cut_off(), STEADY.sentence(), refused, trouble) if why),
        )

    def _cut_off(self, trainer_id: str = "") -> str:
        """Say whether the daemon is cut off from agents; of a trainer, if they are its own."""
        agents, since_s = self._agents, self._state.plane.server.reach.since_s
        if since_s is None or (trainer_id and trainer_id not in self._trainers.standing):
            return ""
        for_s = self._state.plane.awake() - since_s
        return cut_off_sentence(agents.away.values(), len(agents.held), for_s)

    # ---- views -------------------------------------------------------------------------

    def _record(self, trainer_id: str) -> TrainerRecord:
        record = self._trainers.records.get(trainer_id)
        if record is None:
            raise no_trainer(trainer_id)
        return record

    def _nodes(self) -> tuple[Node, ...]:
        """All nodes of the last snapshot; empty if unknown."""
        snapshot = self._state.seen.snapshot
        return (snapshot.nodes if snapshot else None) or ()

    def _view(self, record: TrainerRecord) -> TrainerView:
        return self._views((record,))[0]

    def _views(self, records: Iterable[TrainerRecord]) -> tuple[TrainerView, ...]:
        state, plan = self._state, self._state.seen.plan
        records = tuple(records)
        hopeless = impossible([r for r in records if not r.state.is_final], self._nodes())
        planned: dict[str, list[str]] = {}
        takes_none = state.draining.is_on  # whatever was decided
        for node, trainer_id in plan.assignment.items() if plan and not takes_none else ():
            planned.setdefault(trainer_id, []).append(node)
        held = set(self._agents.held.values())
        waited_for = state.pilots.by_node().keys() - held
        views, withheld, cut = [], self._trainers.waiting.withheld(), self._cuts()
        for record in records:
            nodes = planned.get(record.trainer_id, ())
            observed, starting = self._trainers.nodes_of(record.trainer_id)
            unheard = self._unheard(record)
            view = TrainerView(
                record=record,
                planned_nodes=tuple(sorted(nodes)),
                requested_nodes=tuple(sorted(waited_for.intersection(nodes).union(starting))),
                observed_nodes=observed,
                trouble=self._cut_off(record.trainer_id)
                or " ".join(unheard.values())
                or trouble(record, state.in_force.policy.failure_budget, state.plane.steady())
                or cut.get(record.trainer_id)
                or " ".join(self._not_saved(record.trainer_id))
                or " ".join((*divergence_sentences(record), *record.remark_sentences))
                or hopeless.get(record.trainer_id)
                or self._refused(record, observed)
                or vain_sentence(record, now_s())
                or " ".join(self._late(() if record.state.is_final else nodes)[:1]),
                waits=withheld.get(record.trainer_id, ""),
                unheard_nodes=tuple(unheard),
                gpus=self._gpus(record.trainer_id),
                planned_samples_per_s=0.0
                if not nodes or record.state.is_final or unfit(record, state.in_force.settings)
                else planned_speed(record, state.in_force.settings, len(nodes)),
            )
            views.append(view)
        return tuple(views)

    def _gpus(self, trainer_id: str) -> tuple[NodeGpus, ...]:
        """Return what nodes of its members tell of their GPUs."""
        trainer, figures = self._trainers.trainers.get(trainer_id), self._trainers.figures
        if trainer is None or not trainer.record.progress.gpu_use:
            return ()
        nodes = {i: w.node for i, w in trainer.machine.workers.items()}
        told = ((i, figures.gpu_use_on(trainer_id, i)) for i in trainer.machine.members)
        return tuple(NodeGpus(node=nodes[i], use=use) for i, use in told if use and i in nodes)

    def _refused(self, record: TrainerRecord, observed: Sequence[str]) -> str:
        """Say why pilots of this trainer alone are refused; of all, the status says it."""
        refusals = self._state.refusals
        if observed or record.state.is_final or refusals.why:
            return ""
        return refusals.why_of(record)

    def _node(self, node: Node, waits: Mapping[str, str], late: Mapping[str, str]) -> NodeView:
        state = self._state
        plan = state.seen.plan
        pilot = state.pilots.by_node().get(node.name)
        pool = {n.name: n for n in plan.pool} if plan else {}
        use, reason = "not ours", plan.not_used.get(node.name, "") if plan else ""
        if pilot is not None:
            use = "held" if pilot.record.pilot_id in self._agents.connected else "requested"
            if pilot.record.pilot_id in self._agents.away or pilot.unheard_s is not None:
                use = "unreachable"
        elif plan and node.name in plan.reserve:
            use, reason = "reserve", true_cause(reason, plan, state.in_force.settings)
        elif node.name in state.seen.memory.held_off:
            use = "held-off"
        elif node.state in FREE:
            use = "free"
        elif node.state is NodeState.ALLOCATED:
            use = "busy"
        if node.name in waits and pilot is not None:
            reason = f"Pilot {pilot.record.pilot_id} is queued: {waiting(waits[node.name])}."
        reason = late.get(node.name, reason)
        if not reason and node.name in (cooling := self._cooling_nodes()):
            reason = cooling[node.name]
        if not reason and state.seen.given is not None:
            reason = eligible.why_unused(state.seen.given, node.name)
        if not reason and node.name in state.seen.memory.slow_nodes:
            reason = self._slow_nodes()[node.name]
        return NodeView(
            name=node.name,
            state=node.state.value,
            use=use,
            reason=reason,
            node_type=node.node_type,
            gpus=node.gpus,
            trainer_id=plan.assignment.get(node.name, "") if plan else "",
            pilot_id=pilot.record.pilot_id if pilot else "",
            usable_until_s=pool[node.name].usable_until_s if node.name in pool else None,
        )
