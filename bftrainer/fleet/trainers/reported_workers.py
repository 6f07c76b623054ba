"""Chooses, of the workers that agents report, those that a new daemon adopts and those it kills.

The journal has every worker that existed when a generation was announced, with its pilot, so
agents cannot name others; any other worker can only be starting or warm. A report that cannot be
parsed costs the worker it is about. Called by ``trainers``; ``fleet.generations.adoption`` turns
the believed reports into a machine's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from bftrainer.elastic import protocol
from bftrainer.fleet.generations.members import NodeOffer
from bftrainer.fleet.wire.messages import DaemonMessage, KillWorker, WorkerReport
from bftrainer.fleet.wire.router import RefusedMessages
from bftrainer.model.trainer import TrainerRecord

MOST_REGROUPED = 10_000  # generations that agents may have announced without a daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """A worker to adopt."""

    worker_id: str
    pilot_id: str
    said: tuple[protocol.Message, ...]  # the last commit passed to it and its newest messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubted:
    """A worker to kill."""

    worker_id: str
    pilot_id: str
    why: str  # "": its trainer is final, which is no fault


@dataclass(slots=True)
class ReportJudgement:
    """The result for all reports."""

    believed: dict[str, list[Believed]] = field(default_factory=dict)  # by trainer
    doubted: list[Doubted] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)  # worker, the unknown message type


class AgentReports:
    """Reports of agents, collected until all that can have connected."""

    def __init__(
        self, send: Callable[[str, DaemonMessage], bool], refusals: RefusedMessages
    ) -> None:
        self._send, self._refusals = send, refusals
        self._known: dict[str, Sequence[WorkerReport]] = {}

    @property
    def pilots(self) -> frozenset[str]:
        """Those whose agents' reports are stored."""
        return frozenset(self._known)

    def keep(self, pilot_id: str, reports: Sequence[WorkerReport]) -> None:
        """Store an agent's report; a second Hello replaces the first."""
        self._known[pilot_id] = reports

    def judged(
        self, records: Mapping[str, TrainerRecord], present: Mapping[str, NodeOffer]
    ) -> Mapping[str, Sequence[Believed]]:
        """Return the workers to adopt, by trainer, and have the others killed.

        ``present``: nodes of pilots whose agents are connected and not leaving.
        """
        known, self._known = self._known, {}
        users = {pilot_id: offer.user for pilot_id, offer in present.items()}
        found = judge({p: r for p, r in known.items() if p in present}, records, users)
        for worker_id, what in found.unknown:
            self._refusals.refuse("unknown", worker_id, what)
        for one in found.doubted:
            if one.why:
                why = f"{one.worker_id} is not adopted: {one.why}"
                self._refusals.refuse("not-believed", one.pilot_id, why, code="BFT-1308")
            self._send(one.pilot_id, KillWorker(worker_id=one.worker_id))
        return found.believed


def has_heard(report: WorkerReport, body: Mapping[str, object]) -> bool:
    """Return whether a worker has got a ``Prepare`` or ``Commit``, or a later one."""
    ready = [said for said in report.latest if said.get("type") == protocol.Ready.__name__]
    is_commit = body.get("type") == protocol.Commit.__name__
    heard = [report.commit] if is_commit and report.commit else [] if is_commit else ready
    return any(_number(said) >= _number(body) for said in heard)


def _number(body: Mapping[str, object]) -> tuple[int, int]:
    found = body.get("generation"), body.get("attempt")
    return tuple(n if isinstance(n, int) else 0 for n in found)  # type: ignore[return-value]  # two


def judge(
    reports: Mapping[str, Sequence[WorkerReport]],
    records: Mapping[str, TrainerRecord],
    users: Mapping[str, str] = MappingProxyType({}),
) -> ReportJudgement:
    """Judge what agents report, by pilot, authenticated by its key.

    ``records``: of trainers that are not final. ``users`` that pilots run as; the daemon's own: ""
    or missing.
    """
    out = ReportJudgement()
    of_user = {pilot_id: users.get(pilot_id, "") for pilot_id in reports}  # others cannot object
    claims = Counter((of_user[p], r.worker_id) for p, known in reports.items() for r in known)
    for pilot_id, known in reports.items():
        for report in known:
            record = records.get(report.trainer_id)
            why, said = "", list[protocol.Message]()
            if record is not None:
                said, why = _heard(report, out)
                if of_user[pilot_id] not in ("", record.spec.user):
                    why = "its agent runs as another user"
                n_claims = claims[of_user[pilot_id], report.worker_id]
                why = why or _why_not(record, pilot_id, report.worker_id, said, n_claims)
            if record is None or why:
                one = Doubted(worker_id=report.worker_id, pilot_id=pilot_id, why=why)
                out.doubted.append(one)
                continue
            found = Believed(worker_id=report.worker_id, pilot_id=pilot_id, said=tuple(said))
            out.believed.setdefault(report.trainer_id, []).append(found)
    return out


def _heard(report: WorkerReport, out: ReportJudgement) -> tuple[list[protocol.Message], str]:
    said: list[protocol.Message] = []
    for body in [*report.latest, *([report.commit] if report.commit else [])]:
        try:
            said.append(protocol.from_body(body))
        except protocol.UnknownTypeError as problem:  # of a later release; the rest is used
            out.unknown.append((report.worker_id, str(problem)))
        except protocol.ProtocolError as problem:
            return [], str(problem)
    return said, ""


def _why_not(
    record: TrainerRecord,
    pilot_id: str,
    worker_id: str,
    said: Sequence[protocol.Message],
    claims: int,
) -> str:
    """Say why a worker is not believed; "": no objection."""
    home = dict(record.workers)
    # Journals of earlier releases do not name workers.
    names_all = bool(home) or not record.last_generation
    newest = max((getattr(body, "generation", 0) for body in said), default=0)
    if worker_id.rsplit("-", 2)[0] != record.trainer_id:
        return "its name is not one of this trainer's"
    if home.get(worker_id, pilot_id) != pilot_id or (worker_id not in home and claims > 1):
        return "it belongs to another agent, or several agents claim it"
    if newest and names_all and worker_id not in home:
        return "it was not there when a generation was announced"
    if newest > record.last_generation + MOST_REGROUPED:
        return f"generation {newest} is far beyond {record.last_generation}"
    commits = [body for body in said if isinstance(body, protocol.Commit)]
    return "".join(_foul(commit, record, home if names_all else None) for commit in commits)


def _foul(commit: protocol.Commit, record: TrainerRecord, home: Mapping[str, str] | None) -> str:
    roster = [member.worker_id for member in commit.members]
    if len(set(roster)) < len(roster) or (home is not None and not home.keys() >= set(roster)):
        return "its commit names members that were never announced"
    if not commit.origin and commit.generation > record.last_generation:
        return "its commit was not announced by a daemon"
    return ""
