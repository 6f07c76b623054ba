"""The workers of this node, in teams (``trainers.agent.team``).

Starts and kills them as the daemon orders, forwards messages to them and reports
``WorkerStarted``, ``WorkerSaid`` and ``WorkerExited``. Keeps enough of each team for a returning
daemon to adopt it. Called by ``trainers.agent.main``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from bftrainer.elastic.process.worker_keeper import end_below, reap, sweep
from bftrainer.fleet.wire.messages import (
    StartWorker,
    TellWorker,
    WorkerExited,
    WorkerReport,
    WorkerSaid,
    WorkerStarted,
)
from bftrainer.fleet.wire.peers import PeerStanding
from bftrainer.fleet.wire.router import RefusedMessages
from bftrainer.ground import protocol
from bftrainer.model.errors import BftError
from trainers.agent.channel import Channel
from trainers.agent.gpus import devices_of, is_told
from trainers.agent.output_copy import OutputCopies, output_of
from trainers.agent.preambles import Preamble, placed
from trainers.agent.programs import ProgramPool
from trainers.agent.start import KILLED, Started
from trainers.agent.team import FIRST, Process, Team, split
from trainers.agent.templates import Killed, TemplatePool

LOG = logging.getLogger("bftrainer.agent")
Said = WorkerStarted | WorkerSaid | WorkerExited
Report = Callable[[Said], None]
MAX_LINE_BYTES = 64 * 1024  # of a worker's message; all newest bodies must fit into one Hello
KEPT_ENDS = 64
REAP_S = 0.1  # until processes that were killed are looked at again


class Workers:
    """All workers of this agent, in teams. ``on_commit`` is called with every commit forwarded."""

    def __init__(
        self,
        *,
        log_dir: Path,
        gpus: int,
        report: Report,
        on_commit: Callable[[protocol.Commit], None],
        started: Mapping[str, Started],
    ) -> None:
        self._gpus = gpus
        self._log_dir = log_dir
        self._report = report
        self._on_commit = on_commit
        self._refusals = RefusedMessages(LOG)
        self._teams: dict[str, Team] = {}
        self._processes: dict[str, tuple[Team, Process]] = {}
        self._ended: deque[tuple[Said, ...]] = deque(maxlen=KEPT_ENDS)
        self._pool = TemplatePool(log_dir=log_dir, events=self, started=started)
        self._programs = ProgramPool(log_dir=log_dir, events=self)
        self.copies = OutputCopies()

    def warm(self, interpreters: list[str]) -> None:
        """Start the templates of these interpreters."""
        for interpreter in interpreters:
            self._pool.warm(interpreter)

    def ids(self) -> list[str]:
        """Return the ids of all running teams."""
        return list(self._teams)

    @property
    def are_on_devices(self) -> bool:
        """Return whether some are in collectives of devices; safe from any thread."""
        return any(team.is_on_devices for team in list(self._teams.values()))

    def teams(self) -> list[Team]:
        """Return all running teams."""
        return list(self._teams.values())

    def reports(self) -> list[WorkerReport]:
        """Return what a daemon needs to adopt them all."""
        return [team.report() for team in self._teams.values()]

    def ends(self) -> list[Said]:
        """Return the last messages of teams that ended recently, oldest first."""
        return list(itertools.chain.from_iterable(self._ended))

    def trainers(self) -> list[str]:
        """Return the trainers that have workers here."""
        return list(dict.fromkeys(t.trainer_id for t in self._teams.values()))

    def standings(self, trainer_id: str) -> list[PeerStanding]:
        """Return the status of the teams of one trainer, without lost ones."""
        return [
            team.standing()
            for team in self._teams.values()
            if team.trainer_id == trainer_id and not team.is_lost
        ]

    def start(self, order: StartWorker) -> None:
        """Fork or start a team; a repeated order has no effect."""
        if order.worker_id in self._teams:
            LOG.info("%s is already running", order.worker_id)
            return
        try:
            team_config = _config(order)
            whole, preamble = placed(team_config, self._log_dir)
            configs = split(whole, gpus=self._gpus, environ=os.environ)
        except (protocol.ProtocolError, BftError) as problem:
            cause = f"BFT-1301: bad worker configuration: {problem}"
            if isinstance(problem, BftError):
                cause = f"{problem.code}: {problem.cause} {problem.next_step}"
            end = WorkerExited(worker_id=order.worker_id, returncode=KILLED, cause=cause)
            self._ended.append((end,))
            self._report(end)
            return
        team = Team(order.worker_id, order.trainer_id, len(configs))
        team.devices = devices_of(configs, os.environ, self._gpus)
        may_have_gpus = not team.devices or any(team.devices.values())
        team.output = output_of(team_config)
        team.tells_gpus = is_told(whole) and may_have_gpus
        self._teams[order.worker_id] = team
        for config in configs:
            if self._teams.get(order.worker_id) is team:  # the previous worker could be started
                self._start(team, order, config, preamble)

    def _start(
        self, team: Team, order: StartWorker, config: protocol.WorkerConfig, preamble: Preamble
    ) -> None:
        process = Process(name=config.worker_id, local_rank=config.local_rank)
        team.processes.append(process)
        self._processes[process.name] = (team, process)
        self.copies.begin(process.name, config.log_path, team.output)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        process.channel = Channel(
            ours, on_data=lambda data: self._heard(team, process, data), on_closed=lambda: None
        )
        body = protocol.to_body(config)
        if order.program:
            first_line = {"config": body, "options": order.options}
            if preamble.path:
                first_line["preamble"] = dataclasses.asdict(preamble)
            process.channel.send(json.dumps(first_line).encode() + b"\n")
            self._programs.start(
                process.name, order.program, theirs, preamble=preamble, log_path=config.log_path
            )
        else:
            self._pool.fork(order.interpreter, body, theirs, preamble)

    def tell(self, order: TellWorker) -> None:
        """Forward a body to all workers of a team; drop one that is not for workers."""
        team = self._teams.get(order.worker_id)
        if team is None:
            LOG.info("%s does not run here, message dropped", order.worker_id)
            return
        try:
            message = protocol.from_body(order.body)
            if not isinstance(message, protocol.ToWorker):
                raise protocol.ProtocolError("not a message to a worker")  # noqa: TRY301
            line = protocol.encode(message)
        except protocol.ProtocolError as problem:
            LOG.warning("BFT-1301: body for %s dropped: %s", order.worker_id, problem)
            return
        if isinstance(message, protocol.Commit):
            team.told(message)
            self._on_commit(message)
        for process in team.running():
            if process.channel is not None and not process.channel.send(line):
                LOG.warning("%s no longer reads its messages", process.name)

    def kill(self, worker_id: str) -> None:
        """SIGKILL the process groups of a team; its exit is reported as usual."""
        if team := self._teams.get(worker_id):
            for process in team.running():
                self._kill(process)

    def _kill(self, process: Process) -> None:
        if not self._programs.kill(process.name):
            self._pool.kill(process.name)

    def kill_silent(self, lease_s: float) -> None:
        """Kill workers whose process has sent no heartbeat for this long."""
        for _, process in list(self._processes.values()):
            if process.channel is not None and process.is_silent(lease_s):
                process.channel.drain()  # its heartbeat may be waiting in the socket
                if process.is_silent(lease_s):
                    if not process.cause:  # told once, however long the template takes to kill it
                        process.cause = f"It did not answer for {lease_s:g} s (worker_lease_s)."
                        LOG.warning("%s: %s", process.name, process.cause)
                    self._kill(process)

    def kill_all(self) -> list[Killed]:
        """SIGKILL workers, templates and all that they started; safe from any thread."""
        # First from above: keepers that are killed before their workers take no processor time.
        killed = Killed(end_below(os.getpid()))
        self._programs.kill_all()
        return [killed, *self._pool.kill_all()]

    def sweep(self) -> set[int]:
        """Kill the descendants that we adopted, and reap them in time; return their pids.

        Those of workers whose keeper lives are its own. Workers of runtime ``mpi`` have none: while
        there are any, it is unknown whose an orphan is.
        """
        if self._programs.pids():
            return set()
        swept = sweep(self._pool.pids())
        if swept:
            asyncio.get_running_loop().call_later(REAP_S, self.sweep)
        return swept

    def reap(self) -> None:
        """Reap the descendants that we adopted and that have ended."""
        reap(self._pool.pids() | self._programs.pids())

    # -- events of templates and messages of workers -------------------------------------

    def forked(self, worker_id: str, pid: int) -> None:
        """Record that a worker runs; report it for the first of a team."""
        team, process = self._processes.get(worker_id, (None, None))
        if team is None or process is None:
            return
        process.pid = pid
        if process.local_rank == FIRST:
            self._report(WorkerStarted(worker_id=team.worker_id, pid=pid))

    def exited(self, worker_id: str, returncode: int, cause: str) -> None:
        """Record a worker's end; report its team's, after its last messages."""
        team, process = self._processes.pop(worker_id, (None, None))
        if team is None or process is None:
            return
        self.copies.end(worker_id)
        if process.channel is not None:
            process.channel.drain()
            process.channel.close()
        if team.ended(process, returncode, cause):
            for survivor in team.running():
                self._kill(survivor)
        if team.running():
            return
        del self._teams[team.worker_id]
        end = team.end()
        self._ended.append((*team.words(), end))
        self._report(end)

    def _heard(self, team: Team, process: Process, data: bytes) -> None:
        process.unread += data
        if process.alive_s is not None:
            process.alive_s = time.monotonic()
        *lines, unread = bytes(process.unread).split(b"\n")
        process.unread = bytearray(unread)
        for line in lines:
            self._said(team, process, line)
        if len(unread) > MAX_LINE_BYTES:
            LOG.warning("BFT-1301: %s sent an overlong line, killed", process.name)
            process.unread.clear()
            self._kill(process)

    def _said(self, team: Team, process: Process, line: bytes) -> None:
        try:
            if len(line) > MAX_LINE_BYTES:
                raise protocol.ProtocolError("line too long")  # noqa: TRY301
            message = protocol.decode(line)
            if not isinstance(message, protocol.FromWorker):
                raise protocol.ProtocolError("not a message from a worker")  # noqa: TRY301
        except protocol.ProtocolError as problem:
            self._refusals.refuse("line", process.name, problem)
            return
        if isinstance(message, protocol.Alive):
            process.alive_s = time.monotonic()
        elif (report := team.said(process, protocol.to_body(message))) is not None:
            self._report(report)


def _config(order: StartWorker) -> protocol.WorkerConfig:
    config = protocol.from_body({**order.config, "type": "WorkerConfig"})
    if not isinstance(config, protocol.WorkerConfig) or config.worker_id != order.worker_id:
        raise protocol.ProtocolError("it is for another worker")
    vouched = {(name, protocol.BY_DAEMON): (name, protocol.BY_AGENT) for name in protocol.TELLS}
    pairs = (vouched.get(pair, pair) for pair in config.environment)
    return dataclasses.replace(config, environment=tuple(pairs))
