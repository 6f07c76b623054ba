"""Users' calls on the daemon: submit, cancel, change, studies; administrators' switches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from bftrainer.api.admission import Allowance, check_lent, check_spec, in_site
from bftrainer.api.checkpoint_place import TakenError, check_place, check_places
from bftrainer.api.privacy import check_submitter
from bftrainer.api.service import Peer
from bftrainer.api.volume import change_bytes, standing_bytes, submission_bytes
from bftrainer.batch.clock import now_s
from bftrainer.daemon.daemon import Daemon
from bftrainer.daemon.notifier import check_user
from bftrainer.daemon.state import DaemonState
from bftrainer.daemon.views import DaemonViews
from bftrainer.decide.constraints.caps import limits_on
from bftrainer.decide.isolation import unfit
from bftrainer.fleet.runtimes.base import load_runtime
from bftrainer.fleet.trainers.record_updates import check_growth
from bftrainer.fleet.trainers.remainder import check_whole
from bftrainer.model.columns import counted
from bftrainer.model.decision import Settings
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.size_words import least_nodes, short_size
from bftrainer.model.study import Seen, StudyCount, StudyView, TrialView
from bftrainer.model.trainer import TrainerChange, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import (
    DrainView,
    ReloadView,
    TrainerView,
)

LONG_S: Final = 3600.0
FEW_REPORTS: Final = 8  # of a trial that ended so long ago: views of thousands stay small


def in_policy(spec: TrainerSpec, state: DaemonState) -> TrainerSpec:
    """Return a trainer with what the policy says of its container; raise BFT-1083."""
    policy = state.in_force.policy
    return in_site(
        spec,
        runtime=policy.container_runtime,
        mounts=policy.container_mounts,
        sources=policy.container_sources,
    )


class DaemonTrials:
    """Implements ``bftrainer.api.service.TrialService`` on a running daemon."""

    def __init__(
        self,
        state: DaemonState,
        accept: Callable[[Sequence[TrainerSpec], Peer], object],
        trainers: Callable[[], Sequence[TrainerView]],
    ) -> None:
        """Accept a group as ``DaemonService`` accepts a trainer."""
        self._state, self._accept, self._views = state, accept, trainers
        self._trainers = state.plane.trainers

    def studies(self, user: str) -> tuple[StudyCount, ...]:
        """Return the user's studies, in order of their first trial."""
        trials: dict[str, list[TrialView]] = {}
        for record in self._trainers.records.values():
            if record.spec.trial is not None and record.spec.user == user:
                trials.setdefault(record.spec.trial.study, []).append(self._view(record))
        counts = []
        for study, views in trials.items():
            active = [view for view in views if view.ended_s is None and not view.waits_at_rung]
            n_nodes = sum(view.nodes for view in views)
            counts.append(
                StudyCount(study=study, trials=len(views), active=len(active), nodes=n_nodes)
            )
        return tuple(counts)

    def study(self, user: str, study: str, seen: Seen | None = None) -> StudyView:
        """Return the trials of a study; only what is new to who has seen this daemon's."""
        state, records = self._state, self._records(user, study)
        is_whole = seen is None or seen.incarnation != state.incarnation
        if seen is not None and not is_whole:
            numbers = self._trainers.news.since(user, study, seen.change)
            records = [
                record
                for record in records
                if record.spec.trial and record.spec.trial.number in numbers
            ]
        return StudyView(
            study=study,
            change=self._trainers.news.count(user, study),
            incarnation=state.incarnation,
            pool_nodes=state.seen.pool_size,
            trials=tuple(map(self._view, records)),
            is_whole=is_whole,
            daemon=state.public_key,
        )

    async def news(self, user: str, study: str, seen: Seen, limit_s: float) -> None:
        """Wait until a study is another than it was seen, or the time is over."""
        if seen.incarnation == self._state.incarnation:
            await self._trainers.news.wait(user, study, seen.change, limit_s)

    def unknown(self, specs: Sequence[TrainerSpec]) -> tuple[TrainerSpec, ...]:
        """Return those that are not submitted yet."""
        keys = set(map(_key, self._records(specs[0].user, _study(specs[0]))))
        return tuple(spec for spec in specs if spec.trial and spec.trial.key not in keys)

    def submit(self, specs: Sequence[TrainerSpec], peer: Peer) -> tuple[TrialView, ...]:
        """Accept trials of one study, all or none; those that are known stay as they are."""
        if unknown := self.unknown(specs):
            check_places(unknown, self._views())
            self._accept(unknown, peer)
        keys = {spec.trial.key for spec in specs if spec.trial}
        records = self._records(specs[0].user, _study(specs[0]))
        return tuple(self._view(record) for record in records if _key(record) in keys)

    def _records(self, user: str, study: str) -> list[TrainerRecord]:
        return [
            record
            for record in self._trainers.records.values()
            if record.spec.trial is not None
            and record.spec.trial.study == study
            and record.spec.user == user
        ]

    def _view(self, record: TrainerRecord) -> TrialView:
        if record.spec.trial is None:
            raise TypeError(f"{record.trainer_id} is no trial")
        reports = record.reports
        if record.ended_s is not None and record.ended_s < now_s() - LONG_S:
            reports = reports[-FEW_REPORTS:]
        observed, _ = self._trainers.nodes_of(record.trainer_id)
        return TrialView(
            trainer_id=record.trainer_id,
            tag=record.spec.trial,
            state=str(record.state),
            budget=record.spec.budget,
            waits_at_rung=record.rung_s is not None and not record.state.is_final,
            is_held=record.held_s is not None,
            nodes=len(observed),
            samples=record.progress.samples,
            epoch=record.progress.epoch,
            node_s=record.progress.node_s,
            reports=reports,
            checkpoint_dir=record.spec.checkpoint_dir,
            reason=record.reason,
            ended_s=record.ended_s,
        )


def _study(spec: TrainerSpec) -> str:
    if spec.trial is None:
        return ""
    return spec.trial.study


def _key(record: TrainerRecord) -> tuple[str, int, int] | None:
    if record.spec.trial is None:
        return None
    return record.spec.trial.key


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


def has_ended(record: TrainerRecord) -> UsageError:
    """Return that a trainer cannot be changed any more, and what has it go on in its state."""
    how, again = "is being cancelled", f"'bftrainer requeue {record.trainer_id}' starts it again"
    next_step = f"When it has ended, {again}."
    if record.state.is_final:
        how = f"is {record.state.value}"
        next_step = f"{again[0].upper()}{again[1:]} from its checkpoint, under a new id."
    if record.state is TrainerState.FINISHED:
        next_step = "Submit its script with more --epochs to train on from its state."
    return UsageError("BFT-1043", f"Trainer {record.trainer_id} {how}.", next_step)


def _check_administers(peer: Peer, what: str) -> None:
    if peer.uid not in {0, os.getuid()}:
        raise BftError(
            "BFT-1005",
            f"Only root and the user who runs the daemon may {what}.",
            "Ask an administrator.",
            exit_code=ExitCode.NOT_PERMITTED,
        )


class DaemonService(DaemonViews):
    """Implements ``bftrainer.api.service.Service`` on a running daemon."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon.state)
        self._daemon = daemon
        self.trials = DaemonTrials(daemon.state, self._accept, self.trainers)
        self._allowance = Allowance(
            lambda: (
                daemon.state.in_force.policy.max_trainers_per_user,
                daemon.state.in_force.policy.submissions_per_minute_per_user,
            ),
            time.monotonic,
        )

    def submit(self, spec: TrainerSpec, peer: Peer) -> TrainerView:
        """Accept a trainer; it is durable when this returns."""
        [record] = self._accept([spec], peer)
        return self._view(record)

    def _accept(self, specs: Sequence[TrainerSpec], peer: Peer) -> tuple[TrainerRecord, ...]:
        """Accept trainers, all or none; refuse those that this user cannot submit now."""
        user = specs[0].user
        check_submitter(user, peer)
        for spec in specs:
            for trainer_id in (*spec.after, *spec.after_any):
                self._record(trainer_id)
        self._check_room(specs)
        records = self._trainers.submit_all([in_policy(spec, self._state) for spec in specs])
        self._count(records)
        return records

    def _count(self, records: Sequence[TrainerRecord]) -> None:
        """Count trainers that were submitted, together, and what they write."""
        user, specs = records[0].spec.user, [record.spec for record in records]
        self._allowance.took(user, len(specs))
        standing = standing_bytes(self._decided(user))
        self._state.volume.add(user, submission_bytes(specs, standing))

    def _decided(self, user: str) -> list[TrainerSpec]:
        """Return a user's trainers that decisions see, or may see at any time."""
        active = self._trainers.waiting_and_running()
        theirs = [record for record in active if record.spec.user == user]
        return [record.spec for record in theirs if record.rung_s is None]

    def _check_room(self, specs: Sequence[TrainerSpec]) -> None:
        """Refuse so many trainers more, or one that the policy or the solver does not admit."""
        policy = self._state.in_force.policy
        active = self._trainers.waiting_and_running()
        if policy.max_trainers and len(active) + len(specs) > policy.max_trainers:
            raise UsageError(
                "BFT-1009",
                f"There are {len(active)} trainers already, the policy's limit (max_trainers).",
                "Wait for one to finish, or cancel one.",
                exit_code=ExitCode.REFUSED_BY_POLICY,
            )
        user = specs[0].user
        self._allowance.check(user, active, len(specs))
        decided = [*self._decided(user), *specs]
        self._state.volume.check_curves(user, decided)
        self._state.volume.check(user, submission_bytes(specs, standing_bytes(decided)))
        for spec in specs:
            self._check_sizes(spec)
            in_policy(spec, self._state)

    def _check_sizes(self, spec: TrainerSpec) -> None:
        limits = limits_on(spec, self._state.in_force.settings.limits)
        if of_each := self._state.in_force.policy.max_nodes_per_trainer:
            limits.append(("each trainer", of_each, "max_nodes_per_trainer"))
        for name, max_nodes, key in limits:
            if least_nodes(spec.n_min, spec.gpus_per_unit, self._nodes()) > max_nodes:
                n_min = short_size(spec.n_min, spec.gpus_per_unit)
                limit = str(max_nodes)
                if spec.gpus_per_unit:
                    limit = counted(max_nodes, "node")
                raise UsageError(
                    "BFT-1008",
                    f"n_min is {n_min}, the policy allows {name} {limit} ({key}).",
                    f"Ask for fewer nodes ({spec.size_option} MIN:MAX).",
                    exit_code=ExitCode.REFUSED_BY_POLICY,
                )
        check_lent(spec, self._state.in_force.settings.lend)
        load_runtime(spec.runtime).check(spec)
        check_user(spec)
        check_fit(spec, self._state.in_force.settings)

    def cancel(self, trainer_id: str, peer: Peer, *, now: bool = False) -> TrainerView:
        """End a trainer; BFT-1005 if it belongs to another user."""
        self._owned(trainer_id, peer)
        return self._view(self._trainers.cancel(trainer_id, now=now))

    def change(self, trainer_id: str, change: TrainerChange, peer: Peer) -> TrainerView:
        """Hold, release or update a trainer; BFT-1005, and BFT-1043 if it has ended."""
        record = self._owned(trainer_id, peer)
        if record.state.is_final or record.cancelled_s is not None:
            raise has_ended(record)
        if check_growth(record, change):
            active = self._trainers.waiting_and_running()
            self._allowance.check_count(record.spec.user, active)
        spec = change.applied(record.spec)
        if spec is not record.spec:
            check_spec(spec)
            self._check_sizes(spec)
        self._check_change(record)
        return self._changed(record, self._trainers.change(trainer_id, change))

    def _check_change(self, record: TrainerRecord) -> None:
        user = record.spec.user
        standing = standing_bytes(self._decided(user))
        self._state.volume.check(user, change_bytes(record, standing))

    def _changed(self, before: TrainerRecord, after: TrainerRecord) -> TrainerView:
        """Count a change that was carried out, unless it changed nothing."""
        if after is not before:
            user = after.spec.user
            self._state.volume.add(user, change_bytes(after, standing_bytes(self._decided(user))))
        return self._view(after)

    def requeue(self, trainer_id: str, peer: Peer) -> TrainerView:
        """Start it again from its checkpoint; one that has ended becomes a new trainer."""
        record = self._owned(trainer_id, peer)
        if record.state is TrainerState.FINISHED or (
            record.cancelled_s is not None and not record.state.is_final
        ):
            raise has_ended(record)
        if record.state.is_final:
            check_whole(record)
            try:
                check_place(record.spec, self.trainers())
            except TakenError as error:
                raise error.of_requeue(trainer_id) from error
            self._check_room([record.spec])
            again = self._trainers.requeue(trainer_id)
            self._count([again])
            return self._view(again)
        self._check_change(record)
        return self._changed(record, self._trainers.requeue(trainer_id))

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
        self._state.journal.flush()

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
        self._state.draining.begin(peer.user, limit_s)
        nodes = tuple(sorted(self._state.pilots.by_node()))
        return DrainView(nodes=nodes, deadline_s=time.time() + limit_s)

    def resume(self, peer: Peer) -> bool:
        """Take nodes again; False: this daemon is about to end, and the next one does."""
        _check_administers(peer, "let it take nodes again")
        return self._state.draining.resume(peer.user)
