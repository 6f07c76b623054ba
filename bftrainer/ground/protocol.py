"""Messages between the control plane and a worker, as frozen dataclasses; a worker's rank.

One JSON object per line, over a socket that the worker inherits; the agent forwards the
bodies. Standard library only: this module is imported in users' training processes. Unknown
types and fields and values that a field's annotation forbids (``fields``) are refused; a line
has at most ``MAX_LINE_BYTES``.

A generation forms in three steps. ``Prepare`` goes to every worker of the new membership;
each answers ``Ready`` from its control thread and goes on training; the first survivor opens
the generation's store and reports its port. ``Commit`` goes to the union of the old and the
new membership: old members switch at the same step boundary, joiners are waiting. ``Entered``
reports that a member holds the common state and trains.

With L workers on each of k nodes a generation has k * L workers; the one with local rank l on
the node of rank r has rank r * L + l. L is fixed for a trainer and so not part of a ``Commit``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, cast

from bftrainer.ground.fields import (
    Amount,
    Count,
    Counts,
    Each,
    FilePath,
    Flag,
    MaybeAmount,
    MaybeCount,
    MaybeNumber,
    Name,
    Number,
    Pairs,
    Port,
    Text,
    Texts,
    Words,
    is_deep,
    made,
    record,
    shown,
)

MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_MEMBERS = 8192
MAX_REPORTS = 32  # of a training that are repeated
MAX_GPUS = 64  # of a node
# Fields added later: omitted at their defaults, because older agents and daemons refuse unknown
# fields.
_LATER = {
    "WorkerConfig": (
        *("member", "local_rank", "local_size", "backend", "gpus", "preamble"),
        *("batch_per_worker", "lr_rule", "steps"),
        *("container", "container_runtime", "container_mounts"),
    ),
    "Commit": ("batch", "sizes"),
    "Progress": ("total", "noise_scale"),
    "Failed": ("place",),
}
# In a worker's environment: the daemon knows ``Progress.total``, ``Failed.place``, ``TrainingLoss``
# and ``GpusInUse``, and so does the agent.
RUN_ID = "BFT_RUN_ID"  # one for all workers a trainer ever has, and for no other trainer
SEED = "BFT_SEED"  # the trainer's, for programs that we cannot seed
TELLS_TOTAL, TELLS_PLACE = "BFT_TELLS_TOTAL", "BFT_TELLS_PLACE"
TELLS_LOSS, TELLS_GPUS = "BFT_TELLS_LOSS", "BFT_TELLS_GPUS"
NAN_UPDATES = "BFT_NAN_UPDATES"  # updates in a row after which ``Diverged`` is sent; 0: never
LEAST_NODES = "BFT_LEAST_NODES"  # of a generation of the trainer, if that is more than one
TELLS = (TELLS_TOTAL, TELLS_PLACE, TELLS_LOSS, TELLS_GPUS)
BY_DAEMON, BY_AGENT = "daemon", "agent"


class ProtocolError(Exception):
    """A line that is not one of our messages."""


class UnknownTypeError(ProtocolError):
    """An unknown message type, perhaps one of a later release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One node of a generation, with all its workers; the roster is in every ``Commit``."""

    worker_id: Name
    rank: Count
    node: Name
    address: Name  # where its data-plane sockets are reachable
    agent_endpoint: Name = ""  # its agent's peer socket, so that survivors can regroup
    agent_public_key: Name = ""


Members: TypeAlias = Annotated[tuple[Member, ...], Each(record(Member), MAX_MEMBERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A metric that the script reported, and how far it had trained by then."""

    value: Number
    step: Count = 0  # committed steps
    epoch: Count = 0  # complete epochs
    samples: Count = 0  # committed samples, over all epochs


Reports: TypeAlias = Annotated[tuple[Report, ...], Each(record(Report), MAX_REPORTS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of a worker, sent when it is forked."""

    trainer_id: Name
    worker_id: Name
    node: Name
    script: FilePath
    args: Texts = ()
    cwd: FilePath = "/"
    environment: Pairs = ()
    log_path: FilePath = ""
    checkpoint_dir: FilePath = ""
    checkpoint_interval_s: Amount = 60.0
    epochs: MaybeCount = None
    samples: MaybeCount = None
    steps: MaybeCount = None  # updates
    address: Name = "127.0.0.1"
    incarnation: Count = 0
    seed: Count = 0
    backend: Name = "auto"  # see backend_choice
    member: Name = ""  # id in rosters of this node's workers together; "": worker_id
    local_rank: Count = 0  # among this node's workers
    local_size: Count = 1
    gpus: Count = 0  # per worker; 0: a single worker has all, several have one each
    batch_per_worker: Count = 0  # of ``DecidedBatch``; 0: the script declares the batch
    lr_rule: Name = ""
    preamble: Text = ""  # shell file under which it starts; agents keep it, workers get none
    # Image that it runs in, the runtime's name, and mounts; likewise.
    container: Text = ""
    container_runtime: Name = "auto"
    container_mounts: Text = ""

    @property
    def member_id(self) -> str:
        """Id in rosters of this node's workers together."""
        return self.member or self.worker_id


# ---- to the worker -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """A generation is being formed and the receiver is in it."""

    generation: Count
    attempt: Count
    open_store: Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The generation exists: switch to it at the next step boundary.

    A receiver that is not in ``members`` leaves at that boundary. An empty ``members``
    parks the trainer: ``saver`` first writes a checkpoint ("": rank 0, which may be lost).
    ``abandon``: the old generation lost a member, so do not wait for a boundary; the step
    in flight is repeated if no member committed it.
    """

    generation: Count
    attempt: Count
    token: Name
    members: Members
    store_host: Name = ""
    store_port: Port = 0
    abandon: Flag = False
    incarnation: Count = 0
    saver: Name = ""
    n_min: Count = 1  # fewer members than this are parked
    origin: Name = ""  # pilot whose agent announced it while no daemon was running
    batch: Count = 0  # samples of a step, over all members; 0: as before
    sizes: Counts = ()  # the only numbers of members that are formed; empty: any


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Exit now, without saving anything."""

    reason: Words


# ---- from the worker -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """The worker has imported, built and rehearsed a step: it can join without delay."""

    warm_up_s: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Answer to ``Prepare``; ``store_port`` when asked to open the store."""

    generation: Count
    attempt: Count
    store_port: Port = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """This worker holds the generation's common state."""

    generation: Count
    attempt: Count
    rank: Count
    size: Count
    step: Count  # committed steps so far
    epoch: Count
    samples: Count  # committed samples so far, over all epochs
    pause_s: Amount  # since the end of its last committed step; 0 for a joiner
    transfer_s: Amount
    resumed_from: Words = ""  # checkpoint file, if no member had a state
    batch: Count = 0  # effective global batch of this generation
    lr_factor: Amount = 1.0  # on the optimizer's learning rate, at its beginning
    shares: Counts = ()  # samples of each rank in a full batch
    backend: Words = ""  # back end of the gradient average, and why; "": one worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Sent at most twice a second by every member."""

    generation: Count
    step: Count
    epoch: Count
    samples: Count
    step_s: Amount  # recent median, s
    samples_per_s: Amount  # whole generation, recent
    own_s: Amount = 0.0  # of a full step, without waiting for others; 0: not measured
    share: Count = 0  # samples of this worker in a full batch
    total: Count = 0  # samples of the whole training; 0: not known, or the daemon did not ask
    noise_scale: Amount = 0.0  # of the gradients, in samples; 0: not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoss:
    """The mean loss of this worker's samples, since its last one. Older agents and daemons drop it.

    Sent by every member once in a while, where that is understood.
    """

    generation: Count
    step: Count  # committed steps by then
    loss: MaybeNumber = None  # None: one of its losses was NaN or infinite
    weight: Amount  # what it counts by: samples of an update, or what the script says


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The last reports of this training, oldest first; from rank 0, at each of them."""

    generation: Count
    reports: Reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Heartbeat of the process, whatever its training loop does; for the agent only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A collective of this generation failed; waiting for the next ``Commit``."""

    generation: Count
    attempt: Count
    step: Count
    reason: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint is on disk (file and directory synced)."""

    generation: Count
    step: Count
    samples: Count
    path: Words
    wall_s: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsaved:
    """Checkpoints are not written; until the next ``Saved``. Older agents and daemons drop it."""

    cause: Words  # with its code


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """The loss of this worker's share is no finite number. Older agents and daemons drop it."""

    step: Count  # committed steps by then
    cause: Words  # with its code


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarked:
    """What a user should know of a training that goes on. Older agents and daemons drop it."""

    kind: Name  # the first of each kind counts
    step: Count  # committed steps by then
    cause: Words  # with its code
    generation: Count = 0  # the only one that it is true of; 0: it is of the training


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """The training began without newer checkpoints, or anew. Older agents and daemons drop it."""

    cause: Words  # with its code, and where it began


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The worker is not in the new generation and exits with status 0."""

    generation: Count  # the new one
    step: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """All epochs (or samples) are done; on rank 0 the script runs on to its end."""

    generation: Count
    step: Count
    epoch: Count
    samples: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The script raised or misused the API; the traceback is in the log."""

    code: Name
    cause: Words
    next_step: Words
    place: Words = ""  # "file:line" of the script's own code; "": not in it


# ---- from the agent ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """Nodes of its rosters that this worker's node cannot connect to, while it does not get on.

    Repeated while there are any, then once without. An older daemon drops it.
    """

    nodes: Texts
    agents: Texts = ()  # endpoints of those meant, one for each node; (): whichever is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a tool of the driver says of a GPU; None: it does not tell."""

    use_percent: MaybeAmount = None  # of the time, as the driver counts it
    memory_used_mib: MaybeAmount = None
    memory_total_mib: MaybeAmount = None


Gpus: TypeAlias = Annotated[tuple[Gpu, ...], Each(record(Gpu), MAX_GPUS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusInUse:
    """The GPUs that a node's workers of a trainer have, once in a while. An older daemon drops it.

    Sent without any once nothing is told of them any more.
    """

    gpus: Gpus


ToWorker: TypeAlias = Prepare | Commit | Stop
FromWorker: TypeAlias = (
    Warm
    | Ready
    | Entered
    | Progress
    | TrainingLoss
    | Reported
    | Alive
    | Interrupted
    | Saved
    | Unsaved
    | Diverged
    | Remarked
    | PassedOver
    | Left
    | Finished
    | Failed
)
Message: TypeAlias = ToWorker | FromWorker | WorkerConfig | Unreachable | GpusInUse


@functools.cache
def _types() -> dict[str, type[Any]]:
    """Return the messages by the names that they have on the wire."""
    return {cls.__name__: cls for cls in typing.get_args(Message)}


@functools.cache
def _omitted(name: str) -> dict[str, Any]:
    """Return the defaults at which fields of a message are omitted."""
    later = _LATER.get(name, ())
    return {
        field.name: field.default
        for field in dataclasses.fields(_types()[name])
        if field.name in later
    }


def to_body(message: Message) -> dict[str, Any]:
    """Return the message as a JSON-able dict with its type name."""
    name = type(message).__name__
    body = {"type": name, **dataclasses.asdict(message)}
    for field, default in _omitted(name).items():
        if body[field] == default:
            del body[field]
    return body


def from_body(body: Any) -> Message:
    """Return the message of a dict; raise ``ProtocolError`` if it is not one."""
    if not isinstance(body, dict):
        raise ProtocolError("a message is a JSON object")
    kind = body.get("type")
    cls = None
    if isinstance(kind, str):
        cls = _types().get(kind)
    if cls is None:
        raise UnknownTypeError(f"unknown message type {shown(kind)}")
    try:
        return cast("Message", made(cls, {k: v for k, v in body.items() if k != "type"}))
    except ValueError as problem:
        raise ProtocolError(f"{cls.__name__}: {problem}") from None


def encode(message: Message) -> bytes:
    """Return one line, newline included."""
    line = json.dumps(to_body(message), separators=(",", ":")).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"{type(message).__name__} is longer than {MAX_LINE_BYTES} bytes")
    return line


def decode(line: bytes) -> Message:
    """Return the message of a line; raise ``ProtocolError`` if it is not one."""
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError("line too long")
    if is_deep(line):
        raise ProtocolError("brackets are nested too deeply")
    try:
        body = json.loads(line)
    except ValueError as problem:
        raise ProtocolError(f"not JSON: {problem}") from problem
    return from_body(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """A worker's place among all workers of a generation."""

    rank: int
    size: int  # workers of all nodes
    nodes: int
    address: str  # where this worker's sockets listen


def place_in(commit: Commit, config: WorkerConfig) -> RankInfo | None:
    """Return this worker's place in the generation of ``commit``, None if it is not in it."""
    me = next((m for m in commit.members if m.worker_id == config.member_id), None)
    if me is None:
        return None
    return RankInfo(
        rank=me.rank * config.local_size + config.local_rank,
        size=len(commit.members) * config.local_size,
        nodes=len(commit.members),
        address=me.address or config.address,
    )
