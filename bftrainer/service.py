"""What users see of the daemon: its state as views, and their requests (submit, cancel)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from bftrainer.actuate.trials import check_growth
from bftrainer.api.admission import check_spec
from bftrainer.api.allowance import Allowance
from bftrainer.api.checkpoint_place import check_place
from bftrainer.api.privacy import check_submitter, no_trainer
from bftrainer.api.service import Peer
from bftrainer.daemon import Daemon
from bftrainer.decide import end_cost
from bftrainer.decide.caps import limits_on
from bftrainer.deciding import DECISION
from bftrainer.errors import BftError, ExitCode, UsageError
from bftrainer.explain.backends import backend_sentences
from bftrainer.explain.batches import batch_sentences
from bftrainer.explain.failures import trouble, trouble_sentences
from bftrainer.explain.pilots import waiting, waiting_sentences
from bftrainer.explain.restarts import loss_sentences, restart_sentences
from bftrainer.explain.sizes import explain_trainer
from bftrainer.explain.slow_nodes import slow_sentences, straggler_sentences
from bftrainer.explain.startable import impossible
from bftrainer.explain.terms import told
from bftrainer.harm.backoff import sentence
from bftrainer.model.account import AccountReport, Asked
from bftrainer.model.cluster import JobState, Node, NodeState
from bftrainer.model.decision import Plan, Settings
from bftrainer.model.harm import HarmReport
from bftrainer.model.terms import Terms
from bftrainer.model.trainer import TrainerChange, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import (
    DrainView,
    Explanation,
    LogFile,
    NodeView,
    ReloadView,
    StatusView,
    TrainerView,
)
from bftrainer.notifying import check_user
from bftrainer.observability.figures import Extras, daemon_figures
from bftrainer.observability.metrics import MetricSample
from bftrainer.runtimes.base import load_runtime
from bftrainer.surviving.decision import unfit
from bftrainer.surviving.words import sentences as left_out_sentences
from bftrainer.trial_service import DaemonTrials

_FREE = (NodeState.IDLE, NodeState.PLANNED)


def check_fit(spec: TrainerSpec, settings: Settings) -> None:
    """Refuse a trainer that the solver would reject in every decision (BFT-1027)."""
    record = TrainerRecord(
        trainer_id=spec.name, spec=spec, state=TrainerState.QUEUED, submitted_s=0.0
    )
    if why := unfit(record, settings):
        raise UsageError(
            "BFT-1027",
            f"It cannot be allocated. {why}",
            "Give other sizes, another weight or another curve.",
        )


def _has_ended(record: TrainerRecord, next_step: str) -> UsageError:
    how = f"is {record.state.value}" if record.state.is_final else "is being cancelled"
    return UsageError("BFT-1043", f"Trainer {record.trainer_id} {how}.", next_step)


def _check_administers(peer: Peer, what: str) -> None:
    if peer.uid not in {0, os.getuid()}:
        raise BftError(
            "BFT-1005",
            f"Only root and the user who runs the daemon may {what}.",
            "Ask an administrator.",
            exit_code=ExitCode.NOT_PERMITTED,
        )


class DaemonService:
    """Implements ``bftrainer.api.service.Service`` on a running daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._told: tuple[Plan | None, Terms] = None, {}  # the last plan explained
        self.trials = DaemonTrials(daemon, self._check_new, self.trainers)
        self._allowance = Allowance(
            lambda: (
                daemon.policy.max_trainers_per_user,
                daemon.policy.submissions_per_minute_per_user,
            ),
            time.monotonic,
        )
        daemon.metrics.add(self._figures)

    def status(self) -> StatusView:
        """Return the daemon's state."""
        daemon, seen = self._daemon, self._daemon.seen
        snapshot, nodes = seen.snapshot, self._nodes()
        pilots = daemon.pilots
        held = len(daemon.agents.connected)
        return StatusView(
            incarnation=daemon.incarnation,
            pid=os.getpid(),
            started_s=daemon.started_s,
            batch_system=daemon.system.name,
            observed="present" if snapshot and snapshot.is_complete else "unknown",
            failures=self._failures(),
            policy_hash=daemon.policy_hash,
            nodes_total=len(nodes),
            nodes_idle=sum(1 for n in nodes if n.state in _FREE),
            nodes_held=held,
            nodes_requested=len(pilots.pilots) - held,
            decisions=seen.decisions,
            last_decision_ms=seen.decision_ms,
            last_decision_s=seen.decided_s,
            rescales=sum(r.rescales for r in daemon.trainers.records.values()),
            give_backs=pilots.give_backs,
            preemptions=pilots.preemptions,
            trainers=self.trainers(),
            polling=daemon.poller.figures(),
            back_off=sentence(daemon.harm.state),
            slow_nodes=tuple(self._slow_nodes().values()),
            cooling_nodes=tuple(self._cooling_nodes().values()),
            left_out=left_out_sentences(seen.memory.left_out),
            measured=end_cost.measured(seen.memory, daemon.settings),
            draining=daemon.draining.sentence(),
            policy_notes=daemon.reloading.notes(),
        )

    def nodes(self) -> tuple[NodeView, ...]:
        """Return every node of the last snapshot."""
        waits = self._waiting_pilots()
        return tuple(self._node(n, waits) for n in self._nodes())

    def trainers(self) -> tuple[TrainerView, ...]:
        """Return all trainers in order of submission."""
        return self._views(self._daemon.trainers.records.values())

    def trainer(self, trainer_id: str) -> TrainerView:
        """Return one trainer; BFT-1004 if there is none."""
        return self._view(self._record(trainer_id))

    def explain(self, trainer_id: str) -> Callable[[], Explanation]:
        """Collect why the trainer has this size or does not run; the result says it, anywhere."""
        daemon, given = self._daemon, self._daemon.seen.given
        plan, view = daemon.seen.plan, self._explanation(self._record(trainer_id))

        def say() -> Explanation:
            if self._told[0] is not plan:
                self._told = plan, told(given, plan, daemon.allocate)
            return replace(view, terms=self._told[1].get(trainer_id, ()))

        return say

    def _explanation(self, record: TrainerRecord) -> Explanation:
        daemon, trainer_id = self._daemon, record.trainer_id
        plan = daemon.seen.plan
        view = self._view(record)
        allocation = plan.allocation if plan else None
        marginal = allocation.marginals.get(trainer_id) if allocation else None
        return Explanation(
            trainer_id=trainer_id,
            state=record.state.value,
            planned_size=len(view.planned_nodes),
            observed_size=len(view.observed_nodes),
            sentences=(
                *trouble_sentences(record, daemon.policy.failure_budget, time.monotonic()),
                *self._pilot_sentences(record, view.planned_nodes),
                *self._size_sentences(record, len(view.observed_nodes)),
                *straggler_sentences(record, plan, daemon.settings, view.observed_nodes),
                *backend_sentences(record),
                *batch_sentences(record),
                *self._fault_sentences(record),
                *restart_sentences(record),
                *loss_sentences(record),
                *(() if record.state.is_final else (*self._stops(), *self._failures(record))),
            ),
            decision_id=daemon.journal.last_seq(DECISION),
            node_price=allocation.node_price if allocation else 0.0,
            gain_of_one_more=marginal.gain_of_one_more if marginal else None,
            loss_of_one_fewer=marginal.loss_of_one_fewer if marginal else None,
            policy=daemon.policy.policy,
        )

    def _pilot_sentences(
        self, record: TrainerRecord, planned_nodes: Sequence[str]
    ) -> tuple[str, ...]:
        """Say why its pilots are refused, or wait."""
        if record.state.is_final:
            return ()
        daemon, waiting = self._daemon, self._waiting_pilots()
        why = daemon.refusals.why_of(record)
        reasons = [waiting[node] for node in planned_nodes if node in waiting]
        return (*([why] if why else []), *waiting_sentences(reasons))

    def _waiting_pilots(self) -> dict[str, str]:
        """Return why pilots are pending, in the batch system's words, by node."""
        daemon, snapshot = self._daemon, self._daemon.seen.snapshot
        jobs = (snapshot.jobs if snapshot else None) or ()
        reasons = {
            job.pilot_id: job.reason
            for job in jobs
            if job.pilot_id is not None and job.state is JobState.PENDING
        }
        pilots = daemon.pilots.by_node().items()
        return {
            node: reasons[pilot.record.pilot_id]
            for node, pilot in pilots
            if pilot.record.pilot_id in reasons
        }

    def _fault_sentences(self, record: TrainerRecord) -> tuple[str, ...]:
        """Say which nodes it failed on and does not use for a while."""
        return tuple(self._cooling_nodes(of=record.trainer_id).values())

    def _size_sentences(self, record: TrainerRecord, observed_size: int) -> tuple[str, ...]:
        daemon = self._daemon
        if why := daemon.trainers.waiting.withheld().get(record.trainer_id):
            return (why,)
        settled = daemon.trainers.budget.in_words(record.trainer_id, time.time())
        if settled and observed_size:
            return settled
        queue = daemon.trainers.waiting.eligible()
        return explain_trainer(
            record, daemon.seen.plan, daemon.settings, queue, self._nodes(), observed_size
        )

    def logs(self, trainer_id: str) -> tuple[LogFile, ...]:
        """Return its log files, oldest first; reads users' files, so not in the event loop."""
        self._record(trainer_id)
        return self._daemon.trainers.log_files(trainer_id)

    def harm(self, since_s: float | None) -> HarmReport:
        """Summarise the effect on ordinary jobs since then; None: since the start."""
        return self._daemon.harm.report(since_s)

    def account(self, asked: Asked) -> Callable[[], AccountReport]:
        """Collect who used what; the result sums up, anywhere."""
        return self._daemon.accountant.report(asked)

    def metrics(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return self._daemon.metrics.text()

    def submit(self, spec: TrainerSpec, peer: Peer) -> TrainerView:
        """Accept a trainer; it is durable when this returns."""
        self._check_new([spec], peer)
        return self._view(self._daemon.trainers.submit(spec))

    def _check_new(self, specs: Sequence[TrainerSpec], peer: Peer) -> None:
        """Refuse trainers that this user cannot submit now; else they count as a submission."""
        user = specs[0].user
        check_submitter(user, peer)
        for trainer_id in {i for spec in specs for i in (*spec.after, *spec.after_any)}:
            self._record(trainer_id)
        self._check_room(specs)
        self._allowance.took(user, len(specs))

    def _check_room(self, specs: Sequence[TrainerSpec]) -> None:
        """Refuse so many trainers more, or one that the policy or the solver does not admit."""
        policy = self._daemon.policy
        active = self._daemon.trainers.waiting_and_running()
        if policy.max_trainers and len(active) + len(specs) > policy.max_trainers:
            raise UsageError(
                "BFT-1009",
                f"There are {len(active)} trainers already, the policy's limit (max_trainers).",
                "Wait for one to finish, or cancel one.",
                exit_code=ExitCode.REFUSED_BY_POLICY,
            )
        self._allowance.check(specs[0].user, active, len(specs))
        for spec in specs:
            self._check_sizes(spec)

    def _check_sizes(self, spec: TrainerSpec) -> None:
        limits = limits_on(spec, self._daemon.settings.limits)
        if of_each := self._daemon.policy.max_nodes_per_trainer:
            limits.append(("each trainer", of_each, "max_nodes_per_trainer"))
        for name, most, key in limits:
            if spec.n_min > most:
                raise UsageError(
                    "BFT-1008",
                    f"n_min is {spec.n_min}, the policy allows {name} {most} ({key}).",
                    "Ask for fewer nodes (--nodes MIN:MAX).",
                    exit_code=ExitCode.REFUSED_BY_POLICY,
                )
        load_runtime(spec.runtime).check(spec)
        check_user(spec)
        check_fit(spec, self._daemon.settings)

    def cancel(self, trainer_id: str, peer: Peer, *, now: bool = False) -> TrainerView:
        """End a trainer; BFT-1005 if it belongs to another user."""
        self._owned(trainer_id, peer)
        return self._view(self._daemon.trainers.cancel(trainer_id, now=now))

    def change(self, trainer_id: str, change: TrainerChange, peer: Peer) -> TrainerView:
        """Hold, release or update a trainer; BFT-1005, and BFT-1043 if it has ended."""
        record = self._owned(trainer_id, peer)
        if record.state.is_final or record.cancelled_s is not None:
            raise _has_ended(record, "'bftrainer requeue' starts a failed or cancelled one again.")
        if check_growth(record, change):
            others = self._daemon.trainers.waiting_and_running()
            self._allowance.check_count(record.spec.user, others)
        spec = change.applied(record.spec)
        if spec is not record.spec:
            check_spec(spec)
            self._check_sizes(spec)
        return self._view(self._daemon.trainers.change(trainer_id, change))

    def requeue(self, trainer_id: str, peer: Peer) -> TrainerView:
        """Start it again from its checkpoint; one that has ended becomes a new trainer."""
        record = self._owned(trainer_id, peer)
        if record.state is TrainerState.FINISHED or (
            record.cancelled_s is not None and not record.state.is_final
        ):
            raise _has_ended(record, "Submit it with more --epochs to train on from its state.")
        if record.state.is_final:
            check_place(record.spec, self.trainers())
            self._check_room([record.spec])
            self._allowance.took(record.spec.user)
        return self._view(self._daemon.trainers.requeue(trainer_id))

    def _owned(self, trainer_id: str, peer: Peer) -> TrainerRecord:
        """Return a trainer that this user may change."""
        record = self._record(trainer_id)
        if peer.uid != 0 and peer.user != record.spec.user:
            raise UsageError(
                "BFT-1005",
                f"Trainer {trainer_id} belongs to {record.spec.user}.",
                "Ask its owner or an administrator.",
                exit_code=ExitCode.NOT_PERMITTED,
            )
        return record

    def flush(self) -> None:
        """Wait until accepted entries are on disk or have failed (blocking, any thread)."""
        self._daemon.journal.flush()

    def shutdown(self, peer: Peer, release: str = "") -> None:
        """Stop the daemon, with ``release`` ("saved", "now") after all its nodes."""
        _check_administers(peer, "stop it")
        if release:
            self._daemon.end_with_nodes(saves=release == "saved")
        else:
            self._daemon.stop()

    async def reload(self, peer: Peer) -> ReloadView:
        """Read the policy again; the next decision goes by it."""
        _check_administers(peer, "reload its policy")
        return await self._daemon.reloading.reload(peer.user)

    def drain(self, peer: Peer, limit_s: float) -> DrainView:
        """Give all nodes back within the limit, and take none until ``resume``."""
        _check_administers(peer, "give its nodes back")
        self._daemon.draining.begin(peer.user, limit_s)
        nodes = tuple(sorted(self._daemon.pilots.by_node()))
        return DrainView(nodes=nodes, deadline_s=time.time() + limit_s)

    def resume(self, peer: Peer) -> None:
        """Take nodes again."""
        _check_administers(peer, "let it take nodes again")
        self._daemon.draining.resume(peer.user)

    def _figures(self) -> tuple[MetricSample, ...]:
        daemon = self._daemon
        plan, trainers = daemon.seen.plan, daemon.trainers
        extras = Extras(
            pool_nodes=len(plan.pool) if plan else 0,
            pauses=trainers.pauses,
            paused_s=trainers.paused_s,
            back_off_level=daemon.harm.state.level,
            slow_nodes=len(daemon.seen.memory.slow_nodes),
            cooling_nodes=len(self._cooling_nodes()),
            stragglers_found=trainers.speeds.found,
            stragglers_replaced=trainers.speeds.replaced,
            can_write_down=daemon.journal.trouble is None,
            left_out=len(daemon.seen.memory.left_out),
            failed_decisions=daemon.failures.count,
            refused=daemon.plane.server.counts,
        )
        return daemon_figures(self.status(), extras)

    def _slow_nodes(self) -> dict[str, str]:
        daemon = self._daemon
        return slow_sentences(daemon.seen.memory, daemon.settings, time.time())

    def _cooling_nodes(self, of: str = "") -> dict[str, str]:
        now_s = time.time()
        cooling = self._daemon.trainers.quarantine.cooling(now_s)
        return {
            name: f"{name}: {one.sentence(now_s)}"
            for name, one in cooling.items()
            if of in ("", one.trainer_id)
        }

    def _stops(self) -> tuple[str, ...]:
        why = self._daemon.draining.sentence()
        return (why,) if why else ()

    def _failures(self, record: TrainerRecord | None = None) -> tuple[str, ...]:
        """Say what fails; for a trainer without what was said of its pilots."""
        daemon, snapshot = self._daemon, self._daemon.seen.snapshot
        found = snapshot.failures if snapshot else ("No snapshot has been taken yet.",)
        trouble = str(daemon.journal.trouble or "")
        refused = "" if record is not None else daemon.refusals.why
        return (*found, *(why for why in (refused, trouble) if why))

    # ---- views -------------------------------------------------------------------------

    def _record(self, trainer_id: str) -> TrainerRecord:
        record = self._daemon.trainers.records.get(trainer_id)
        if record is None:
            raise no_trainer(trainer_id)
        return record

    def _nodes(self) -> tuple[Node, ...]:
        """All nodes of the last snapshot; empty if unknown."""
        snapshot = self._daemon.seen.snapshot
        return (snapshot.nodes if snapshot else None) or ()

    def _view(self, record: TrainerRecord) -> TrainerView:
        return self._views((record,))[0]

    def _views(self, records: Iterable[TrainerRecord]) -> tuple[TrainerView, ...]:
        daemon, plan = self._daemon, self._daemon.seen.plan
        records = tuple(records)
        hopeless = impossible([r for r in records if not r.state.is_final], self._nodes())
        planned: dict[str, list[str]] = {}
        for node, trainer_id in plan.assignment.items() if plan else ():
            planned.setdefault(trainer_id, []).append(node)
        held = {h.node for h in daemon.agents.connected.values()}
        waited_for = daemon.pilots.by_node().keys() - held
        views, withheld = [], daemon.trainers.waiting.withheld()
        for record in records:
            nodes = planned.get(record.trainer_id, ())
            observed, starting = daemon.trainers.nodes_of(record.trainer_id)
            view = TrainerView(
                record=record,
                planned_nodes=tuple(sorted(nodes)),
                requested_nodes=tuple(sorted(waited_for.intersection(nodes).union(starting))),
                observed_nodes=observed,
                trouble=trouble(record, daemon.policy.failure_budget, time.monotonic())
                or hopeless.get(record.trainer_id)
                or self._refused(record, observed),
                waits=withheld.get(record.trainer_id, ""),
            )
            views.append(view)
        return tuple(views)

    def _refused(self, record: TrainerRecord, observed: Sequence[str]) -> str:
        """Say why pilots of this trainer alone are refused; of all, the status says it."""
        refusals = self._daemon.refusals
        if observed or record.state.is_final or refusals.why:
            return ""
        return refusals.why_of(record)

    def _node(self, node: Node, waits: Mapping[str, str]) -> NodeView:
        daemon = self._daemon
        plan = daemon.seen.plan
        pilot = daemon.pilots.by_node().get(node.name)
        pool = {n.name: n for n in plan.pool} if plan else {}
        use, reason = "not ours", plan.not_used.get(node.name, "") if plan else ""
        if pilot is not None:
            use = "held" if pilot.record.pilot_id in daemon.agents.connected else "requested"
        elif plan and node.name in plan.reserve:
            use = "reserve"
        elif node.name in daemon.seen.memory.held_off:
            use = "held-off"
        elif node.state in _FREE:
            use = "free"
        elif node.state is NodeState.ALLOCATED:
            use = "busy"
        if node.name in waits and pilot is not None:
            reason = f"Pilot {pilot.record.pilot_id} is queued: {waiting(waits[node.name])}."
        if not reason and node.name in (cooling := self._cooling_nodes()):
            reason = cooling[node.name]
        if not reason and node.name in daemon.seen.memory.slow_nodes:
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
