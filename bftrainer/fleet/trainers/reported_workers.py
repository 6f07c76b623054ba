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
from typing import NamedTuple

from bftrainer.fleet.generations.members import NodeOffer
from bftrainer.fleet.generations.state import trainer_of
from bftrainer.fleet.wire.messages import DaemonMessage, KillWorker, WorkerReport
from bftrainer.fleet.wire.router import RefusedMessages
from bftrainer.ground import protocol
from bftrainer.model.trainer import TrainerRecord

MOST_REGROUPED = 10_000  # generations that agents may have announced without a daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """A worker to adopt."""

    worker_id: str
    pilot_id: str
    messages: tuple[protocol.Message, ...]  # the last commit passed to it, its newest messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubted:
    """A worker to kill."""

    worker_id: str
    pilot_id: str
    why: str  # "": its trainer is final, which is no fault


class UnknownMessage(NamedTuple):
    """A message of a type that this release lacks."""

    worker_id: str
    problem: str


@dataclass(slots=True)
class ReportJudgement:
    """The result for all reports."""

    believed: dict[str, list[Believed]] = field(default_factory=dict)  # by trainer
    doubted: list[Doubted] = field(default_factory=list)
    unknown: list[UnknownMessage] = field(default_factory=list)


class AgentReports:
    """Reports of agents, collected until all that can have connected."""

    def __init__(
        self, send: Callable[[str, DaemonMessage], bool], refusals: RefusedMessages
    ) -> None:
        self._send, self._refusals = send, refusals
        self._by_pilot: dict[str, Sequence[WorkerReport]] = {}

    @property
    def pilots(self) -> frozenset[str]:
        """Those whose agents' reports are stored."""
        return frozenset(self._by_pilot)

    def keep(self, pilot_id: str, reports: Sequence[WorkerReport]) -> None:
        """Store an agent's report; a second Hello replaces the first."""
        self._by_pilot[pilot_id] = reports

    def judged(
        self, records: Mapping[str, TrainerRecord], present: Mapping[str, NodeOffer]
    ) -> Mapping[str, Sequence[Believed]]:
        """Return the workers to adopt, by trainer, and have the others killed.

        ``present``: nodes of pilots whose agents are connected and not leaving.
        """
        reports: dict[str, Sequence[WorkerReport]] = {}
        users: dict[str, str] = {}
        for pilot_id, offer in present.items():
            users[pilot_id] = offer.user
            if pilot_id in self._by_pilot:
                reports[pilot_id] = self._by_pilot[pilot_id]
        self._by_pilot = {}
        judgement = judge(reports, records, users)
        for message in judgement.unknown:
            self._refusals.refuse("unknown", message.worker_id, message.problem)
        for worker in judgement.doubted:
            if worker.why:
                why = f"{worker.worker_id} is not adopted: {worker.why}"
                self._refusals.refuse("not-believed", worker.pilot_id, why, code="BFT-1308")
            self._send(worker.pilot_id, KillWorker(worker_id=worker.worker_id))
        return judgement.believed


def has_heard(report: WorkerReport, body: Mapping[str, object]) -> bool:
    """Return whether a worker has got a ``Prepare`` or ``Commit``, or a later one."""
    answers: list[Mapping[str, object]] = []
    if body.get("type") != protocol.Commit.__name__:
        answers = [sent for sent in report.latest if sent.get("type") == protocol.Ready.__name__]
    elif report.commit:
        answers = [report.commit]
    return any(_number(answer) >= _number(body) for answer in answers)


def _number(body: Mapping[str, object]) -> tuple[int, int]:
    """Return which try to form which generation a message is about."""
    generation, attempt = body.get("generation"), body.get("attempt")
    if not isinstance(generation, int):
        generation = 0
    if not isinstance(attempt, int):
        attempt = 0
    return generation, attempt


def judge(
    reports: Mapping[str, Sequence[WorkerReport]],
    records: Mapping[str, TrainerRecord],
    users: Mapping[str, str] = MappingProxyType({}),
) -> ReportJudgement:
    """Judge what agents report, by pilot, authenticated by its key.

    ``records``: of trainers that are not final. ``users`` that pilots run as; the daemon's own: ""
    or missing.
    """
    judgement = ReportJudgement()
    claims = Counter[tuple[str, str]]()  # pilots of other users cannot object
    for pilot_id, workers in reports.items():
        for report in workers:
            claims[users.get(pilot_id, ""), report.worker_id] += 1
    for pilot_id, workers in reports.items():
        user = users.get(pilot_id, "")
        for report in workers:
            record = records.get(report.trainer_id)
            why, messages = "", list[protocol.Message]()
            if record is not None:
                messages, why = _read(report, judgement)
                if user not in ("", record.spec.user):
                    why = "its agent runs as another user"
                n_claims = claims[user, report.worker_id]
                why = why or _why_not(record, pilot_id, report.worker_id, messages, n_claims)
            if record is None or why:
                judgement.doubted.append(
                    Doubted(worker_id=report.worker_id, pilot_id=pilot_id, why=why)
                )
                continue
            judgement.believed.setdefault(report.trainer_id, []).append(
                Believed(worker_id=report.worker_id, pilot_id=pilot_id, messages=tuple(messages))
            )
    return judgement


def _read(report: WorkerReport, judgement: ReportJudgement) -> tuple[list[protocol.Message], str]:
    """Return the messages in a report; or what is wrong with one, a sentence."""
    bodies, messages = list(report.latest), list[protocol.Message]()
    if report.commit:
        bodies.append(report.commit)
    for body in bodies:
        try:
            messages.append(protocol.from_body(body))
        except protocol.UnknownTypeError as problem:  # of a later release; the rest is used
            judgement.unknown.append(UnknownMessage(report.worker_id, str(problem)))
        except protocol.ProtocolError as problem:
            return [], str(problem)
    return messages, ""


def _why_not(
    record: TrainerRecord,
    pilot_id: str,
    worker_id: str,
    messages: Sequence[protocol.Message],
    claims: int,
) -> str:
    """Say why a worker is not believed; "": no objection."""
    home = dict(record.workers)
    # Journals of earlier releases do not name workers.
    names_all = bool(home) or not record.last_generation
    newest = max((getattr(body, "generation", 0) for body in messages), default=0)
    if trainer_of(worker_id) != record.trainer_id:
        return "its name is not one of this trainer's"
    if home.get(worker_id, pilot_id) != pilot_id or (worker_id not in home and claims > 1):
        return "it belongs to another agent, or several agents claim it"
    if newest and names_all and worker_id not in home:
        return "it was not there when a generation was announced"
    if newest > record.last_generation + MOST_REGROUPED:
        return f"generation {newest} is far beyond {record.last_generation}"
    for body in messages:
        if isinstance(body, protocol.Commit):
            foul = _foul(body, record, home if names_all else None)
            if foul:
                return foul
    return ""


def _foul(commit: protocol.Commit, record: TrainerRecord, home: Mapping[str, str] | None) -> str:
    roster = [member.worker_id for member in commit.members]
    if len(set(roster)) < len(roster) or (home is not None and not home.keys() >= set(roster)):
        return "its commit names members that were never announced"
    if not commit.origin and commit.generation > record.last_generation:
        return "its commit was not announced by a daemon"
    return ""
