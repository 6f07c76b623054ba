"""Views of the daemon's state for users."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bftrainer.api.privacy import no_trainer
from bftrainer.batch.clock import STEADY, now_s
from bftrainer.daemon.decider import DECISION
from bftrainer.daemon.explain.constraints import constraint_sentences, effects_on, what_if
from bftrainer.daemon.explain.lives import is_vain, loss_sentences, restart_sentences, vain_sentence
from bftrainer.daemon.explain.nodes import (
    cut_off_sentence,
    slow_sentences,
    straggler_sentences,
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
from bftrainer.daemon.node_views import LentCounts, NodeTable
from bftrainer.daemon.state import DaemonState
from bftrainer.decide import end_cost
from bftrainer.decide.exclusion import sentences as left_out_sentences
from bftrainer.decide.horizon import longest_rescale_s
from bftrainer.decide.isolation import unfit
from bftrainer.decide.what_if import WhatIf
from bftrainer.fleet.pilots.refusal_words import waiting_sentences
from bftrainer.fleet.trainers import unreachable
from bftrainer.model.cluster import JobState, Node, node_of
from bftrainer.model.decision import Plan
from bftrainer.model.reports import AccountReport, Asked, HarmReport, UserAccount
from bftrainer.model.study import Seen
from bftrainer.model.timeline import TimelineView
from bftrainer.model.trainer import GpuLoad, TrainerRecord, TrainerState
from bftrainer.model.views import (
    Explanation,
    LogFile,
    NodeGpus,
    NodeView,
    SizeSpeed,
    StatusView,
    TrainerView,
    idle_nodes,
)

SHOWN_LATE = 3  # agents of one trainer
SHOWN_WORKERS = 8  # of one trainer, with their histories


@dataclass(frozen=True, slots=True, kw_only=True)
class _Explained:
    """The plan that was explained last."""

    plan: Plan | None = None
    decision: WhatIf | None = None  # it, taken again; None: it cannot be


class DaemonViews:
    """The part of ``bftrainer.api.service.Service`` that only looks."""

    def __init__(self, state: DaemonState) -> None:
        self._state, self._agents, self._trainers = state, state.plane.agents, state.plane.trainers
        self._explained = _Explained()
        state.metrics.add(self._figures)

    def status(self) -> StatusView:
        """Return the daemon's state."""
        state, observed, pilots = self._state, self._state.seen, self._state.pilots
        snapshot, nodes, lent = observed.snapshot, self._nodes(), LentCounts(state)
        n_held, n_requested = lent.n_nodes()
        held_nodes = set()
        for node, pilot in pilots.by_node().items():
            if pilot.record.pilot_id in self._agents.held:
                held_nodes.add(node_of(node))
        answers = "unknown"
        if snapshot is not None and snapshot.is_complete:
            answers = "present"
        return StatusView(
            incarnation=state.incarnation,
            pid=os.getpid(),
            started_s=state.started_s,
            batch_system=state.batch_system,
            observed=answers,
            failures=self._failures(),
            policy_hash=state.in_force.policy_hash,
            nodes_total=len(nodes),
            nodes_idle=idle_nodes(nodes, held_nodes),
            nodes_held=n_held,
            nodes_requested=n_requested,
            decisions=observed.decisions,
            last_decision_ms=observed.decision_ms,
            last_decision_s=observed.decided_s,
            rescales=sum(r.rescales for r in self._trainers.records.values()),
            give_backs=pilots.give_backs,
            preemptions=pilots.preemptions,
            trainers=self.trainers(),
            polling=state.poller.figures(),
            back_off=sentence(state.harm.state),
            slow_nodes=tuple(self._slow_nodes().values()),
            cooling_nodes=tuple(self._cooling_nodes().values()),
            cuts=tuple(f"{trainer_id}: {why}" for trainer_id, why in self._cuts().items()),
            left_out=left_out_sentences(observed.memory.left_out),
            measured=replace(
                end_cost.measured(observed.memory, state.in_force.settings),
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
            not_proven=not_proven(observed.allocation),
            lent_gpus=lent.totals(),
        )

    def nodes(self) -> tuple[NodeView, ...]:
        """Return every node of the last snapshot."""
        gpu_use: dict[str, GpuLoad] = {}
        for trainer_id in self._trainers.trainers:
            for node_gpus in self._gpus(trainer_id):
                gpu_use[node_gpus.node] = node_gpus.use
        table = NodeTable(
            self._state,
            waits=self._waiting_pilots(),
            cooling=self._cooling_nodes(),
            slow=self._slow_nodes(),
            gpu_use=gpu_use,
        )
        return tuple(map(table.view, self._nodes()))

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
        policy = self._state.in_force.allocate
        situation, plan = self._state.seen.given, self._state.seen.plan
        record = self._record(trainer_id)
        circumstances = self._circumstances(record)
        its_view = self._view(record)
        view = self._explanation(record, its_view)
        reasons = tuple(self._reasons(record, its_view, circumstances))
        further_sentences = tuple(self._further_sentences(record, its_view, circumstances))

        def say() -> Explanation:
            if self._explained.plan is not plan:
                decision = what_if(situation, plan, policy)
                self._explained = _Explained(plan=plan, decision=decision)
            decision = self._explained.decision
            effects = effects_on(record, decision, circumstances)
            return replace(
                view,
                sentences=(
                    *reasons,
                    *constraint_sentences(effects, view.gpus_per_unit),
                    *further_sentences,
                ),
                terms=policy_terms(decision).get(trainer_id, ()),
                constraints=effects,
            )

        return say

    def _explanation(self, record: TrainerRecord, view: TrainerView) -> Explanation:
        """Return the numbers, without sentences."""
        state, trainer_id = self._state, record.trainer_id
        settings = state.in_force.settings
        allocation, marginal = state.seen.allocation, None
        node_price, gain, loss = 0.0, None, None
        if allocation is not None:
            node_price = allocation.node_price
            marginal = allocation.marginals.get(trainer_id)
        if marginal is not None:
            gain, loss = marginal.gain_of_one_more, marginal.loss_of_one_fewer
        speeds: tuple[SizeSpeed, ...] = ()
        if not unfit(record, settings):  # else nothing can be computed with its numbers
            speeds = near_speeds(record, settings, len(view.planned_nodes), marginal)
        return Explanation(
            trainer_id=trainer_id,
            state=record.state.value,
            planned_size=len(view.planned_nodes),
            observed_size=len(view.observed_nodes),
            sentences=(),
            decision_id=state.journal.last_seq(DECISION),
            node_price=node_price,
            gain_of_one_more=gain,
            loss_of_one_fewer=loss,
            policy=state.in_force.policy.policy,
            speeds=speeds,
            t_fwd_s=settings.t_fwd_s,
            unheard_nodes=view.unheard_nodes,
            gpus_per_unit=record.spec.gpus_per_unit,
        )

    def _reasons(
        self, record: TrainerRecord, view: TrainerView, circumstances: Circumstances
    ) -> Iterator[str]:
        """Say what troubles a trainer, and why it has its size."""
        state, trainer_id = self._state, record.trainer_id
        failure_budget = state.in_force.policy.failure_budget
        yield from trouble_sentences(record, failure_budget, state.plane.steady())
        yield from self._unheard(record).values()
        yield from self._cuts(of=trainer_id).values()
        yield from self._not_saved(trainer_id)
        yield from divergence_sentences(record)
        yield from record.remark_sentences
        if circumstances.is_decided and record.cancelled_s is None:
            yield from self._pilot_sentences(record, view.planned_nodes)
        yield from self._size_sentences(record, len(view.observed_nodes), circumstances)

    def _further_sentences(
        self, record: TrainerRecord, view: TrainerView, circumstances: Circumstances
    ) -> Iterator[str]:
        """Say what a trainer went through."""
        state = self._state
        if circumstances.is_decided and record.cancelled_s is None:
            settings = state.in_force.settings
            yield from straggler_sentences(record, state.seen.plan, settings, view.observed_nodes)
        yield from backend_sentences(record)
        yield from batch_sentences(record)
        yield from self._fault_sentences(record)
        if why := vain_sentence(record, now_s()):
            yield why
        yield from restart_sentences(record)
        yield from loss_sentences(record)
        if not record.state.is_final:
            yield from self._stops()
            yield from self._failures(record)
        yield from self._histories(record.trainer_id)

    def _histories(self, trainer_id: str) -> tuple[str, ...]:
        """Say how its first few workers, and their pilots, came to be what they are."""
        trainer, pilots = self._trainers.trainers.get(trainer_id), self._state.pilots.pilots
        if trainer is None:
            return ()
        ahead_s = now_s() - self._state.plane.steady()
        histories: list[str] = []
        for worker in trainer.machine.crew.workers.values():
            pilot = pilots.get(worker.pilot_id)
            if worker.is_alive and pilot is not None and len(histories) < SHOWN_WORKERS:
                histories.append(
                    f"{worker.node}: worker {worker.worker_id} {worker.in_words(ahead_s)}; pilot"
                    f" {worker.pilot_id} {pilot.in_words()}."
                )
        return tuple(histories)

    def _pilot_sentences(
        self, record: TrainerRecord, planned_nodes: Sequence[str]
    ) -> tuple[str, ...]:
        """Say why its pilots are refused, or wait, or that their agents do not come."""
        if record.state.is_final:
            return ()
        waiting = self._waiting_pilots()
        reasons = [waiting[node] for node in planned_nodes if node in waiting]
        sentences = [*waiting_sentences(reasons), *self._late(planned_nodes)]
        if why := self._state.refusals.why_of(record):
            sentences.insert(0, why)
        return tuple(sentences)

    def _late(self, nodes: Collection[str]) -> list[str]:
        """Say of a few of these nodes that agents on them have not connected."""
        late = self._state.late.by_node()
        return [sentence for node, sentence in late.items() if node in nodes][:SHOWN_LATE]

    def _waiting_pilots(self) -> dict[str, str]:
        """Return why pilots are pending, in the batch system's words, by node."""
        reasons: dict[str, str] = {}
        for job in self._state.seen.jobs:
            if job.pilot_id is not None and job.state is JobState.PENDING:
                reasons[job.pilot_id] = job.reason
        waiting: dict[str, str] = {}
        for node, pilot in self._state.pilots.by_node().items():
            if pilot.record.pilot_id in reasons:
                waiting[node] = reasons[pilot.record.pilot_id]
        return waiting

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
        observed, decided_s = self._state.seen, 0.0
        if observed.given is not None:
            decided_s = observed.given.now_s
        return explain_trainer(
            record,
            observed.plan,
            self._state.in_force.settings,
            self._trainers.waiting.eligible(),
            self._nodes(),
            observed_size,
            decided_s,
            circumstances=circumstances,
        )

    def logs(self, trainer_id: str) -> tuple[LogFile, ...]:
        """Return its log files, oldest first; reads users' files, so not in the event loop."""
        self._record(trainer_id)
        return self._trainers.log_files(trainer_id)

    def harm(self, since_s: float | None) -> HarmReport:
        """Summarise the effect on ordinary jobs since then; None: since the start."""
        if since_s is not None:
            since_s -= STEADY.wall_ahead_s()
        return self._state.harm.report(since_s)

    def account(self, asked: Asked) -> Callable[[], AccountReport]:
        """Collect who used what; the result sums up, anywhere."""
        return self._state.accountant.report(asked)

    def metrics(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return self._state.metrics.text()

    def _figures(self) -> tuple[MetricSample, ...]:
        state, trainers = self._state, self._trainers
        observed, memory, used_s = state.seen, state.seen.memory, state.accountant.used_s
        rule, training = state.harm.rule, trainers.occupancy().training
        gpus = {node.name: node.gpus for node in self._nodes()}
        for pilot in state.pilots.pilots.values():
            if pilot.record.part is not None:
                gpus[pilot.record.part.name] = pilot.record.part.gpus
        values = {
            "nodes_pool": observed.pool_size,
            "nodes_training": len(training),
            "gpus_held": sum(gpus.get(name, 0) for name in self._held_names()),
            "gpus_training": sum(gpus.get(node, 0) for node in training),
            "pauses_total": trainers.pauses,
            "pause_seconds_total": trainers.paused_s,
            "lives_lost_total": trainers.lives_lost,
            "steps_lost_total": trainers.steps_lost.total(),
            "back_off_level": state.harm.state.level,
            "pilots_requested_total": state.harm.pending.n_requested,
            "pilots_stayed_pending_total": state.harm.pending.n_stayed,
            "pilots_staying_pending": len(state.harm.pending.staying),
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
            "state_disk_bytes": state.disk.size_bytes,
            "state_disk_free_bytes": state.disk.free_bytes,
            "left_out": len(memory.left_out),
            "failed_decisions_total": state.failures.count,
            "decision_gap_ratio": gap_share(observed.allocation),
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
        by_user: Counter[UserAccount] = Counter()
        for trainer_id in training.values():
            spec = trainers.records[trainer_id].spec
            by_user[spec.user, spec.account] += 1
        records = trainers.records.values()
        return figures + user_figures(records, by_user, used_s, trainers.steps_lost)

    def _slow_nodes(self) -> dict[str, str]:
        state = self._state
        return slow_sentences(state.seen.memory, state.in_force.settings, now_s())

    def _cooling_nodes(self, of: str = "") -> dict[str, str]:
        at_s = now_s()
        cooling = {**self._trainers.quarantine.cooling(at_s), **self._state.harm.cooling(at_s)}
        sentences: dict[str, str] = {}
        for node, node_rest in cooling.items():
            if of in ("", node_rest.trainer_id):
                sentences[node] = f"{node}: {node_rest.sentence(at_s)}"
        return sentences

    def _cuts(self, of: str = "") -> dict[str, str]:
        """Say of trainers which of their nodes cannot reach each other."""
        steady_s, sentences = self._state.plane.steady(), dict[str, str]()
        for trainer_id, trainer in self._trainers.trainers.items():
            if of in ("", trainer_id) and (why := unreachable.sentence(trainer, steady_s)):
                sentences[trainer_id] = why
        return sentences

    def _unheard(self, record: TrainerRecord) -> dict[str, str]:
        """Say of a parked trainer's last nodes that their agents are silent, by node."""
        if record.state is not TrainerState.PARKED:
            return {}
        state, awake_s, sentences = self._state, self._state.plane.awake(), dict[str, str]()
        for pilot_id in self._trainers.last_pilots(record.trainer_id):
            pilot = state.pilots.pilots.get(pilot_id)
            if pilot is not None and pilot.unheard_s is not None:
                for_s, node = awake_s - pilot.unheard_s, pilot.record.node
                left_s = None
                if not pilot.is_leaving:
                    left_s = state.pilots.unreachable_s - for_s
                sentences[node] = unheard_sentence(node, for_s, left_s)
        return sentences

    def _not_saved(self, trainer_id: str) -> tuple[str, ...]:
        trainer = self._trainers.trainers.get(trainer_id)
        if trainer is None:
            return ()
        checkpoints = trainer.machine.checkpoints
        return tuple(filter(None, (checkpoints.not_saved, checkpoints.passed_over)))

    def _stops(self) -> tuple[str, ...]:
        return tuple(filter(None, (self._state.draining.sentence(),)))

    def _failures(self, record: TrainerRecord | None = None) -> tuple[str, ...]:
        """Say what fails; for a trainer without what was said of its pilots."""
        state, snapshot = self._state, self._state.seen.snapshot
        failures: tuple[str, ...] = ("No snapshot has been taken yet.",)
        if snapshot is not None:
            failures = snapshot.failures
        refusal = room = ""
        if record is None:
            refusal, room = state.refusals.why, state.disk.sentence()
        trouble = str(state.journal.trouble or "")
        sentences = (self._cut_off(), STEADY.sentence(), refusal, room, trouble)
        return (*failures, *filter(None, sentences))

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
        return self._state.seen.nodes

    def _held_names(self) -> set[str]:
        """Return the nodes and parts of nodes that agents hold."""
        names: set[str] = set()
        for pilot_id, node in self._agents.held.items():
            pilot = self._state.pilots.pilots.get(pilot_id)
            if pilot is not None and pilot.record.part is not None:
                names.add(pilot.record.part.name)
            else:
                names.add(node)
        return names

    def _view(self, record: TrainerRecord) -> TrainerView:
        [view] = self._views((record,))
        return view

    def _views(self, records: Iterable[TrainerRecord]) -> tuple[TrainerView, ...]:
        state, settings = self._state, self._state.in_force.settings
        records = tuple(records)
        hopeless = impossible([r for r in records if not r.state.is_final], self._nodes())
        planned_nodes = self._planned_nodes()
        awaited = state.pilots.by_node().keys() - self._held_names()
        views, withheld, cuts = [], self._trainers.waiting.withheld(), self._cuts()
        for record in records:
            trainer_id, is_final = record.trainer_id, record.state.is_final
            nodes = planned_nodes.get(trainer_id, [])
            observed, starting = self._trainers.nodes_of(trainer_id)
            unheard = self._unheard(record)
            planned_samples_per_s = 0.0
            if nodes and not is_final and not unfit(record, settings):
                planned_samples_per_s = planned_speed(record, settings, len(nodes))
            late: list[str] = []
            if not is_final:
                late = self._late(nodes)[:1]
            view = TrainerView(
                record=record,
                planned_nodes=tuple(sorted(nodes)),
                requested_nodes=tuple(sorted(awaited.intersection(nodes).union(starting))),
                observed_nodes=observed,
                trouble=self._cut_off(trainer_id)
                or " ".join(unheard.values())
                or trouble(record, state.in_force.policy.failure_budget, state.plane.steady())
                or cuts.get(trainer_id)
                or " ".join(self._not_saved(trainer_id))
                or " ".join((*divergence_sentences(record), *record.remark_sentences))
                or hopeless.get(trainer_id)
                or self._refused(record, observed)
                or vain_sentence(record, now_s())
                or " ".join(late),
                waits=withheld.get(trainer_id, ""),
                unheard_nodes=tuple(unheard),
                gpus=self._gpus(trainer_id),
                planned_samples_per_s=planned_samples_per_s,
            )
            views.append(view)
        return tuple(views)

    def _planned_nodes(self) -> dict[str, list[str]]:
        """Return the nodes of the last plan by trainer; none while all are given back."""
        nodes_of: dict[str, list[str]] = {}
        plan = self._state.seen.plan
        if plan is not None and not self._state.draining.is_on:
            for node, trainer_id in plan.assignment.items():
                nodes_of.setdefault(trainer_id, []).append(node)
        return nodes_of

    def _gpus(self, trainer_id: str) -> tuple[NodeGpus, ...]:
        """Return what nodes of its members tell of their GPUs."""
        trainer, figures = self._trainers.trainers.get(trainer_id), self._trainers.figures
        if trainer is None or not trainer.record.progress.gpu_use:
            return ()
        reports = []
        for worker_id in trainer.machine.crew.members:
            worker = trainer.machine.crew.workers.get(worker_id)
            use = figures.gpu_use_on(trainer_id, worker_id)
            if use and worker is not None:
                reports.append(NodeGpus(node=worker.node, use=use))
        return tuple(reports)

    def _refused(self, record: TrainerRecord, observed: Sequence[str]) -> str:
        """Say why pilots of this trainer alone are refused; of all, the status says it."""
        refusals = self._state.refusals
        if observed or record.state.is_final or refusals.why:
            return ""
        return refusals.why_of(record)
