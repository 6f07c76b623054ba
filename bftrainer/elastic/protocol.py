"""What the control plane and a worker say to each other, as frozen dataclasses.

Carried as one JSON object per line over a socket that the worker inherits; the
agent passes these bodies on without reading them. Standard library only: this
module is imported inside users' training processes. Unknown types and fields are
refused, lines are at most ``MAX_LINE_BYTES``.

A generation forms in three steps. ``Prepare`` goes to every worker of the new
membership; each answers ``Ready`` at once, from its control thread, while it goes
on training; the first survivor opens the generation's own store and reports the
port. ``Commit`` then goes to the union of the old and the new membership: all old
members switch at the same step boundary, joiners are already waiting. ``Entered``
says that a member holds the common state and trains on.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

MAX_LINE_BYTES = 4 * 1024 * 1024


class ProtocolError(Exception):
    """A line that is not one of our messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One node of a generation, with all its workers; the roster is in every ``Commit``."""

    worker_id: str
    rank: int
    node: str
    address: str  # where its data-plane sockets are reachable
    agent_endpoint: str = ""  # its agent's peer socket, so that survivors can regroup
    agent_public_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker is told when it is forked."""

    trainer_id: str
    worker_id: str
    node: str
    script: str
    args: tuple[str, ...] = ()
    cwd: str = "/"
    environment: tuple[tuple[str, str], ...] = ()
    log_path: str = ""
    checkpoint_dir: str = ""
    checkpoint_interval_s: float = 60.0
    epochs: int | None = None
    samples: int | None = None
    address: str = "127.0.0.1"
    incarnation: int = 0
    seed: int = 0
    backend: str = "auto"  # see elastic.choosing
    member: str = ""  # what rosters call the workers of this node together; "": worker_id
    local_rank: int = 0  # among them
    local_size: int = 1

    @property
    def member_id(self) -> str:
        """What rosters call the workers of this node together."""
        return self.member or self.worker_id


# Fields that came later: left out at these values, for older agents refuse what they do not know.
_LATER: dict[str, Any] = {"member": "", "local_rank": 0, "local_size": 1, "backend": "auto"}


# ---- to the worker -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """A generation is being formed and you are in it."""

    generation: int
    attempt: int
    open_store: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The generation exists: switch to it at the next step boundary.

    A receiver that is not in ``members`` leaves at that boundary. No members at
    all means *park*: ``saver`` writes a checkpoint first; "" stands for rank 0, who may
    be the one that is gone.
    ``abandon``: the old generation is broken (a member is gone), do not wait for a
    boundary; the step in flight is redone if no member committed it.
    """

    generation: int
    attempt: int
    token: str
    members: tuple[Member, ...]
    store_host: str = ""
    store_port: int = 0
    abandon: bool = False
    incarnation: int = 0
    saver: str = ""
    n_min: int = 1  # fewer members than this are parked
    origin: str = ""  # pilot whose agent announced it while no daemon was there


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Exit now, without saving anything."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepCopy:
    """While you are alone, keep a copy of the state in that agent's memory.

    ``port`` 0: there is none, stop. The key proves to the holder, and by it to us, that
    this trainer is meant; it is one assignment's and told to nobody else.
    """

    holder: str  # its pilot
    host: str = ""
    port: int = 0
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Nobody of the last generation is left: this agent may hold a copy of its state."""

    holder: str
    node: str
    host: str
    port: int
    key: str = field(repr=False)


# ---- from the worker -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """Imported, built and rehearsed one step: can join without delaying anybody."""

    warm_up_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Answer to ``Prepare``; ``store_port`` when asked to open the store."""

    generation: int
    attempt: int
    store_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """This worker holds the generation's common state."""

    generation: int
    attempt: int
    rank: int
    size: int
    step: int  # committed steps so far
    epoch: int
    samples: int  # committed samples so far, over all epochs
    pause_s: float  # since the end of its last committed step; 0 for a joiner
    transfer_s: float
    resumed_from: str = ""  # checkpoint file, or who held the copy, if no member had a state
    batch: int = 0  # effective global batch of this generation
    lr_factor: float = 1.0  # on the optimizer's learning rate, at its beginning
    shares: tuple[int, ...] = ()  # samples of each rank in a full batch
    backend: str = ""  # what gradients are averaged with, and why; "": alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Sent at most twice a second by every member."""

    generation: int
    step: int
    epoch: int
    samples: int
    step_s: float  # recent median, s
    samples_per_s: float  # whole generation, recent
    own_s: float = 0.0  # of a full step, what this worker did itself; 0: not measured
    share: int = 0  # samples of this worker in a full batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """The process answers, whatever its training loop does; for the agent only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A collective of this generation failed; waiting for the next ``Commit``."""

    generation: int
    attempt: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint is on disk (file and directory synced)."""

    generation: int
    step: int
    samples: int
    path: str
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A copy of the state is complete in the holder's memory, or why it is not."""

    generation: int
    step: int
    samples: int
    holder: str
    size_bytes: int
    hold_s: float  # how long the training stood still for it
    wall_s: float  # from the step boundary until the holder had it
    gap_s: float  # until the next one begins
    refused: str = ""  # why the holder does not have it; the one before stays


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Not in the new generation: left at the boundary, exits with status 0."""

    generation: int  # the one it was not in
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """All epochs (or samples) are done; on rank 0 the script runs on to its own end."""

    generation: int
    step: int
    epoch: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The script raised or misused the API; the traceback is in the log."""

    code: str
    cause: str
    next_step: str


ToWorker: TypeAlias = Prepare | Commit | Stop | KeepCopy | Recall
FromWorker: TypeAlias = (
    Warm
    | Ready
    | Entered
    | Progress
    | Alive
    | Interrupted
    | Saved
    | Copied
    | Left
    | Finished
    | Failed
)
Message: TypeAlias = ToWorker | FromWorker | WorkerConfig

_TYPES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Prepare, Commit, Stop, KeepCopy, Recall, Warm, Ready, Entered, Progress, Alive,
        Interrupted, Saved, Copied, Left, Finished, Failed, WorkerConfig,
    )
}  # fmt: skip


def to_body(message: Message) -> dict[str, Any]:
    """Return the message as a JSON-able dict with its type name."""
    body = {"type": type(message).__name__, **dataclasses.asdict(message)}
    if isinstance(message, WorkerConfig):
        body = {k: v for k, v in body.items() if k not in _LATER or v != _LATER[k]}
    return body


def from_body(body: Any) -> Message:
    """Return the message a dict describes; raise ``ProtocolError`` otherwise."""
    if not isinstance(body, dict):
        raise ProtocolError("a message is a JSON object")
    fields = dict(body)
    cls = _TYPES.get(str(fields.pop("type", None)))
    if cls is None:
        raise ProtocolError(f"unknown message type {body.get('type')!r}")
    known = {f.name for f in dataclasses.fields(cls)}
    if unknown := set(fields) - known:
        raise ProtocolError(f"{cls.__name__}: unknown fields {sorted(unknown)}")
    try:
        if cls is Commit:
            fields["members"] = tuple(Member(**m) for m in fields["members"])
        if cls is Entered:
            fields["shares"] = tuple(fields.get("shares", ()))
        if cls is WorkerConfig:
            fields["args"] = tuple(fields.get("args", ()))
            fields["environment"] = tuple((k, v) for k, v in fields.get("environment", ()))
        return cast("Message", cls(**fields))
    except (TypeError, KeyError, ValueError) as problem:
        raise ProtocolError(f"{cls.__name__}: {problem}") from problem


def encode(message: Message) -> bytes:
    """Return one line, newline included."""
    line = json.dumps(to_body(message), separators=(",", ":")).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"{type(message).__name__} is longer than {MAX_LINE_BYTES} bytes")
    return line


def decode(line: bytes) -> Message:
    """Return the message of one line; raise ``ProtocolError`` otherwise."""
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError("line too long")
    try:
        body = json.loads(line)
    except ValueError as problem:
        raise ProtocolError(f"not JSON: {problem}") from problem
    return from_body(body)
