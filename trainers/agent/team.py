"""A team: the workers of one trainer on this node, and the split of their orders.

``split`` makes a ``WorkerConfig`` for each worker from the node's and from the devices of the
allocation. ``Team`` merges the messages and ends of its processes into those of the node: a node is
ready, has entered or has left when all its workers are, have or did; messages that are the same on
all workers are taken from the first. The daemon knows teams only, by the id of their order. Called
by ``trainers.agent.workers``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bftrainer.elastic.gradients.training_loss import mean_loss
from bftrainer.elastic.process.control import Key, key_of
from bftrainer.fleet.wire.messages import WorkerExited, WorkerReport, WorkerSaid
from bftrainer.fleet.wire.peers import NO_KEY, PeerStanding
from bftrainer.ground import protocol
from bftrainer.ground.backend_choice import DEVICES
from bftrainer.ground.fields import MOST
from bftrainer.ground.protocol import WorkerConfig
from bftrainer.model.errors import UsageError
from trainers.agent.channel import Channel

# Variables in which batch systems list a job's devices: Slurm 22.05, gres.html, "GPU Management".
DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
ALL_SAY = frozenset({"Warm", "Ready", "Entered", "Left"})
FIRST_SAYS = frozenset({"Progress", "TrainingLoss", "Reported", "Finished"})
FIRST = 0


def split(config: WorkerConfig, *, gpus: int, environ: Mapping[str, str]) -> list[WorkerConfig]:
    """Return the configuration of each of the node's ``local_size`` workers.

    Each gets as many devices as its trainer requested. Without a request each of several workers
    gets one, and a single worker all. A single worker gets no other variables. ``environ`` is the
    agent's, as set by the batch system. ``UsageError`` BFT-1417: when there are devices, but not
    one for each worker.
    """
    count = config.local_size
    if count == 1 and not config.gpus:
        return [config]
    devices = _devices(config, gpus, environ)
    if count == 1:
        environment = (*config.environment, *_share(config, devices, 0))
        return [dataclasses.replace(config, environment=environment)]
    return [
        dataclasses.replace(
            config,
            worker_id=name_of(config.worker_id, rank),
            member=config.worker_id,
            local_rank=rank,
            log_path=_log_of(config.log_path, rank),
            environment=(
                *config.environment,
                ("LOCAL_RANK", str(rank)),
                ("LOCAL_WORLD_SIZE", str(count)),
                *_share(config, devices, rank),
            ),
        )
        for rank in range(count)
    ]


def _share(
    config: WorkerConfig, devices: Mapping[str, tuple[str, ...]], rank: int
) -> list[tuple[str, str]]:
    count = config.gpus or 1
    share = slice(rank * count, (rank + 1) * count)
    return [(name, ",".join(listed[share])) for name, listed in devices.items()]


def name_of(worker_id: str, local_rank: int) -> str:
    """Return the id of a worker; the first has that of the node."""
    return f"{worker_id}-{local_rank}" if local_rank else worker_id


def _log_of(log_path: str, local_rank: int) -> str:
    if not log_path:
        return ""
    path = Path(log_path)
    return str(path.with_stem(name_of(path.stem, local_rank)))


def _devices(
    config: WorkerConfig, gpus: int, environ: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the devices of this node by variable; empty if it has none."""
    devices: dict[str, tuple[str, ...]] = {}
    for name in DEVICE_VARIABLES:
        if listed := listed_devices(environ.get(name, "")):
            devices[name] = listed
    if not devices and gpus:
        # The batch system counts devices without listing them: all of them are ours.
        devices = {DEVICE_VARIABLES[0]: tuple(map(str, range(gpus)))}
    per_worker = config.gpus or 1
    for listed in devices.values():
        if len(listed) < config.local_size * per_worker:
            share = f" with {per_worker} each" if config.gpus else ""
            raise UsageError(
                "BFT-1417",
                f"{config.node} has {len(listed)} GPU(s) for {config.local_size} workers{share}"
                " (--workers-per-node).",
                "Request at most as many workers as the smallest node has GPUs.",
            )
    return devices


def listed_devices(value: str) -> tuple[str, ...]:
    """Return the devices that such a variable lists."""
    names = map(str.strip, value.split(","))
    return tuple(name for name in names if name not in ("", "-1", "NoDevFiles"))


Body = dict[str, Any]  # of a message


class Gathered:
    """The newest body of each type from each of ``size`` workers."""

    def __init__(self, size: int) -> None:
        self._newest: list[dict[str, Body]] = [{} for _ in range(size)]
        self._interrupted = (-1, -1)  # the newest that was forwarded

    def said(self, local_rank: int, body: Body) -> Body | None:
        """Record a worker's message; return the node's message that follows, if any."""
        kind = body["type"]
        self._newest[local_rank][kind] = body
        if kind in ALL_SAY:
            return self._together(kind)
        if kind in FIRST_SAYS and local_rank != FIRST:
            return None
        if kind == "Progress":
            return self._progress(body)
        if kind == "TrainingLoss":
            return self._training_loss(body)
        if kind == "Interrupted":
            if _number(body) <= self._interrupted:
                return None
            self._interrupted = _number(body)
        return body

    def has_said(self, local_rank: int, *kinds: str) -> bool:
        """Return whether a worker has sent one of these messages."""
        return not self._newest[local_rank].keys().isdisjoint(kinds)

    def _together(self, kind: str) -> Body | None:
        bodies = [newest[kind] for newest in self._newest if kind in newest]
        if len(bodies) < len(self._newest):
            return None
        # Leavers may have seen different generations; they are in none of them.
        if kind != "Left" and len(set(map(_number, bodies))) > 1:
            return None
        whole = dict(bodies[FIRST])
        for name in ("warm_up_s", "store_port", "pause_s", "transfer_s"):
            if name in whole:
                whole[name] = max(body[name] for body in bodies)
        return whole

    def _progress(self, body: Body) -> Body:
        """Return the first worker's report, with the own part of the slowest worker."""
        reports = [newest.get("Progress", {}) for newest in self._newest]
        if {report.get("generation") for report in reports} != {body["generation"]}:
            return {**body, "own_s": 0.0}  # not measured until all have reported
        own_s = [report["own_s"] for report in reports]
        return {
            **body,
            "own_s": max(own_s) if all(own_s) else 0.0,
            "share": sum(report["share"] for report in reports),
        }

    def _training_loss(self, body: Body) -> Body:
        """Return the first worker's report, with the mean over all that said theirs so far."""
        losses = []
        for newest in self._newest:
            if "TrainingLoss" in newest:
                report = newest["TrainingLoss"]
                losses.append((report["loss"], report["weight"]))
        loss, weight = mean_loss(losses)
        return {**body, "loss": loss, "weight": min(weight, float(MOST))}


def _number(body: Body) -> tuple[int, int]:
    return (body.get("generation", 0), body.get("attempt", 0))


@dataclass(slots=True, kw_only=True)
class Process:
    """One worker."""

    name: str
    local_rank: int
    channel: Channel | None = None
    pid: int = 0
    unread: bytearray = field(default_factory=bytearray)
    alive_s: float | None = None  # last sign of life, our monotonic clock
    cause: str = ""  # why we killed it
    has_ended: bool = False

    def is_silent(self, lease_s: float) -> bool:
        """Return whether it has sent messages before, but none for this long."""
        return self.alive_s is not None and time.monotonic() - self.alive_s > lease_s


class Team:
    """All workers of one order."""

    def __init__(self, worker_id: str, trainer_id: str, size: int = 1) -> None:
        self.worker_id = worker_id
        self.trainer_id = trainer_id
        self.processes: list[Process] = []
        self.step = 0
        self.step_s = 0.0  # that one takes; 0: not known in this generation
        self.moved_s = time.monotonic()  # last step, entry or commit
        self.latest: dict[str, dict[str, Any]] = {}  # newest body of each type, oldest first
        self._commit: protocol.Commit | None = None  # the last one forwarded
        self._entered: protocol.Commit | None = None  # that of the generation it entered last
        self._gathered = Gathered(size)
        self._end: tuple[int, str] | None = None  # of the first worker that ended prematurely
        self.devices: Mapping[str, tuple[str, ...]] = {}  # by variable; without one: all
        self.output = ""  # file that its logs are copied to; "": none
        self.tells_gpus = False  # its daemon understands what is told of them

    def running(self) -> list[Process]:
        """Return the processes that have not ended."""
        return [p for p in self.processes if not p.has_ended]

    @property
    def is_lost(self) -> bool:
        """Return whether a worker has ended prematurely; the others are being killed."""
        return self._end is not None

    @property
    def is_on_devices(self) -> bool:
        """Return whether its workers are in collectives of devices."""
        kinds = [kind for kind in self.latest if kind in ("Entered", "Interrupted", "Finished")]
        is_training = kinds[-1:] == ["Entered"] and bool(self.running())
        return is_training and self.latest["Entered"]["backend"] in DEVICES

    def told(self, commit: protocol.Commit) -> None:
        """Record a commit that is forwarded to all workers."""
        self._commit, self.moved_s = commit, time.monotonic()

    def said(self, process: Process, body: dict[str, Any]) -> WorkerSaid | None:
        """Record a worker's message; return the team's message that follows, if any."""
        if process.local_rank == FIRST and isinstance(step := body.get("step"), int):
            if step > self.step or body["type"] == "Entered":
                self.moved_s, self.step_s = time.monotonic(), body.get("step_s", 0.0)
            self.step = step
        whole = self._gathered.said(process.local_rank, body)
        if whole is None:
            return None
        kind = whole["type"]
        self.latest.pop(kind, None)
        self.latest[kind] = whole
        commit = self._commit
        if kind == "Entered" and commit is not None and _key_of(whole) == key_of(commit):
            self._entered = commit
        return WorkerSaid(worker_id=self.worker_id, body=whole)

    def others(self) -> tuple[protocol.Member, ...]:
        """Return the members on other nodes that it trains with, or is to; none before and after.

        Until it has entered a generation, those of the last one are needed for its step boundary.
        """
        if "Finished" in self.latest or "Left" in self.latest:
            return ()
        members: list[protocol.Member] = []
        for commit in filter(None, (self._commit, self._entered)):
            members += commit.members
        return tuple(member for member in members if member.worker_id != self.worker_id)

    def ended(self, process: Process, returncode: int, cause: str) -> bool:
        """Record the end of a worker; return whether the others must end, too.

        The loss of one worker is that of the node. After the training the first worker
        continues without the others.
        """
        process.has_ended = True
        is_timely = returncode == 0 and self._gathered.has_said(
            process.local_rank, "Left", "Finished"
        )
        is_over = process.local_rank != FIRST and self._gathered.has_said(FIRST, "Finished")
        if is_timely or is_over:
            return False
        self._end = self._end or (returncode, process.cause or cause)
        return True

    def end(self) -> WorkerExited:
        """Return how it ended, once no worker runs."""
        returncode, cause = self._end or (0, "")
        return WorkerExited(worker_id=self.worker_id, returncode=returncode, cause=cause)

    def words(self) -> list[WorkerSaid]:
        """Return its newest messages again."""
        return [WorkerSaid(worker_id=self.worker_id, body=body) for body in self.latest.values()]

    def report(self) -> WorkerReport:
        """Return what a daemon needs to adopt it."""
        return WorkerReport(
            worker_id=self.worker_id,
            trainer_id=self.trainer_id,
            pid=self.processes[FIRST].pid if self.processes else 0,
            commit=None if self._commit is None else protocol.to_body(self._commit),
            latest=list(self.latest.values()),
        )

    def standing(self) -> PeerStanding:
        """Return the team's status for a quorum without a daemon."""
        ready_body = self.latest.get("Ready", {})
        return PeerStanding(
            worker_id=self.worker_id,
            commit=self._commit,
            entered=self._entered,
            interrupted=_key_of(self.latest.get("Interrupted")),
            ready=_key_of(ready_body),
            store_port=ready_body.get("store_port", 0),
            step=self.step,
            has_left="Left" in self.latest,
            has_finished="Finished" in self.latest,
        )


def _key_of(body: Mapping[str, Any] | None) -> Key:
    return (body["generation"], body["attempt"]) if body else NO_KEY
