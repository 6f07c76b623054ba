"""What the daemon does for studies: submits groups of trials, and shows a study's trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from bftrainer.api.checkpoint_place import check_places
from bftrainer.api.service import Peer
from bftrainer.daemon.daemon import Daemon
from bftrainer.model.study import Seen, StudyCount, StudyView, TrialView
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from bftrainer.model.views import TrainerView

LONG_S: Final = 3600.0
FEW_REPORTS: Final = 8  # of a trial that ended so long ago: views of thousands stay small


class DaemonTrials:
    """Implements ``bftrainer.api.service.TrialService`` on a running daemon."""

    def __init__(
        self,
        daemon: Daemon,
        check_room: Callable[[Sequence[TrainerSpec], Peer], None],
        trainers: Callable[[], Sequence[TrainerView]],
    ) -> None:
        """Check a group's room as ``DaemonService`` checks that of a trainer."""
        self._daemon, self._check_room, self._trainers = daemon, check_room, trainers

    def studies(self, user: str) -> tuple[StudyCount, ...]:
        """Return the user's studies, in order of their first trial."""
        found: dict[str, list[TrialView]] = {}
        for record in self._daemon.trainers.records.values():
            if record.spec.trial is not None and record.spec.user == user:
                found.setdefault(record.spec.trial.study, []).append(self._view(record))
        return tuple(
            StudyCount(
                study=study,
                trials=len(views),
                active=sum(1 for v in views if v.ended_s is None and not v.waits_at_rung),
                nodes=sum(v.nodes for v in views),
            )
            for study, views in found.items()
        )

    def study(self, user: str, study: str, seen: Seen | None = None) -> StudyView:
        """Return the trials of a study; only what is new to who has seen this daemon's."""
        daemon, plan = self._daemon, self._daemon.seen.plan
        records = self._records(user, study)
        is_whole = seen is None or seen.incarnation != daemon.incarnation
        if seen is not None and not is_whole:
            new = daemon.trainers.news.since(user, study, seen.change)
            records = [r for r in records if r.spec.trial and r.spec.trial.number in new]
        return StudyView(
            study=study,
            change=daemon.trainers.news.count(user, study),
            incarnation=daemon.incarnation,
            pool_nodes=len(plan.pool) if plan else 0,
            trials=tuple(map(self._view, records)),
            is_whole=is_whole,
            daemon=daemon.keys.public,
        )

    async def news(self, user: str, study: str, seen: Seen, limit_s: float) -> None:
        """Wait until a study is another than it was seen, or the time is over."""
        if seen.incarnation == self._daemon.incarnation:
            await self._daemon.trainers.news.wait(user, study, seen.change, limit_s)

    def unknown(self, specs: Sequence[TrainerSpec]) -> tuple[TrainerSpec, ...]:
        """Return those that are not submitted yet."""
        known = set(map(_key, self._records(specs[0].user, _study(specs[0]))))
        return tuple(spec for spec in specs if spec.trial and spec.trial.key not in known)

    def submit(self, specs: Sequence[TrainerSpec], peer: Peer) -> tuple[TrialView, ...]:
        """Accept trials of one study, all or none; those that are known stay as they are."""
        if new := self.unknown(specs):
            check_places(new, self._trainers())
            self._check_room(new, peer)
            self._daemon.trainers.submit_all(new)
        wanted = {spec.trial.key for spec in specs if spec.trial}
        records = self._records(specs[0].user, _study(specs[0]))
        return tuple(self._view(record) for record in records if _key(record) in wanted)

    def _records(self, user: str, study: str) -> list[TrainerRecord]:
        return [
            record
            for record in self._daemon.trainers.records.values()
            if record.spec.trial is not None
            and record.spec.trial.study == study
            and record.spec.user == user
        ]

    def _view(self, record: TrainerRecord) -> TrialView:
        if record.spec.trial is None:
            raise TypeError(f"{record.trainer_id} is no trial")
        is_long_over = record.ended_s is not None and record.ended_s < time.time() - LONG_S
        observed, _ = self._daemon.trainers.nodes_of(record.trainer_id)
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
            reports=record.reports[-FEW_REPORTS:] if is_long_over else record.reports,
            checkpoint_dir=record.spec.checkpoint_dir,
            reason=record.reason,
            ended_s=record.ended_s,
        )


def _study(spec: TrainerSpec) -> str:
    return spec.trial.study if spec.trial is not None else ""


def _key(record: TrainerRecord) -> tuple[str, int, int] | None:
    return record.spec.trial.key if record.spec.trial is not None else None
