"""What users ask of the daemon: submit, cancel, change; administrators: drain, reload, stop."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from bftrainer.api.admission import Allowance, check_spec
from bftrainer.api.checkpoint_place import check_place
from bftrainer.api.privacy import check_submitter
from bftrainer.api.service import Peer
from bftrainer.daemon.daemon import Daemon
from bftrainer.daemon.notifier import check_user
from bftrainer.daemon.trial_service import DaemonTrials
from bftrainer.daemon.views import DaemonViews
from bftrainer.decide.caps import limits_on
from bftrainer.decide.isolation import unfit
from bftrainer.fleet.runtimes.base import load_runtime
from bftrainer.fleet.trainers.record_updates import check_growth
from bftrainer.model.decision import Settings
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.trainer import TrainerChange, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import (
    DrainView,
    ReloadView,
    TrainerView,
)


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


class DaemonService(DaemonViews):
    """Implements ``bftrainer.api.service.Service`` on a running daemon."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon)
        self.trials = DaemonTrials(daemon, self._check_new, self.trainers)
        self._allowance = Allowance(
            lambda: (
                daemon.policy.max_trainers_per_user,
                daemon.policy.submissions_per_minute_per_user,
            ),
            time.monotonic,
        )

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
