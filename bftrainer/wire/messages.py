"""Messages between daemon and agents; validated on both sides, never pickle.

Each carries the schema version and the daemon's incarnation (fencing: an agent
refuses smaller incarnations than it has seen). Bodies for workers are those of
``bftrainer.elastic.protocol`` and pass through the agent unread.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

SCHEMA: Literal[1] = 1
MAX_MESSAGE_BYTES = 4 * 1024 * 1024


class WireError(Exception):
    """A frame that is not one of our messages (BFT-1301)."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    v: Literal[1] = SCHEMA
    incarnation: int = 0


class WorkerReport(BaseModel):
    """An agent's knowledge of one of its workers, enough to adopt it again."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    worker_id: str
    trainer_id: str
    pid: int
    commit: dict[str, Any] | None = None  # last Commit passed on
    latest: list[dict[str, Any]] = Field(
        default_factory=list
    )  # newest body of each type, oldest first


class HeldCopy(BaseModel):
    """A complete copy of a trainer's state in an agent's memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    trainer_id: str
    generation: int
    step: int
    samples: int
    size_bytes: int
    age_s: float  # since it was complete


# ---- agent → daemon ---------------------------------------------------------------


class Hello(_Message):
    """First message of every connection, and again after a daemon's return."""

    type: Literal["hello"] = "hello"
    pilot_id: str
    node: str
    address: str  # data-plane address of this node
    pid: int
    peer_endpoint: str
    peer_public_key: str
    gpus: int = 0
    end_s: float | None = None  # when the pilot's time limit strikes
    workers: list[WorkerReport] = Field(default_factory=list)
    copy_port: int = 0  # where it takes copies of other nodes' trainers; 0: nowhere
    copies: list[HeldCopy] = Field(default_factory=list)


class Heartbeat(_Message):
    """Every ``heartbeat_s``; its absence for ``agent_timeout_s`` is a loss."""

    type: Literal["heartbeat"] = "heartbeat"
    pilot_id: str
    workers: list[str] = Field(default_factory=list)


class WorkerStarted(_Message):
    """The template forked the worker."""

    type: Literal["worker-started"] = "worker-started"
    worker_id: str
    pid: int


class WorkerSaid(_Message):
    """A body from a worker."""

    type: Literal["worker-said"] = "worker-said"
    worker_id: str
    body: dict[str, Any]


class WorkerExited(_Message):
    """A worker is gone, for whatever reason."""

    type: Literal["worker-exited"] = "worker-exited"
    worker_id: str
    returncode: int  # negative: killed by that signal
    cause: str = ""  # e.g. "the interpreter /x/python has no torch"


class Leaving(_Message):
    """The agent exits now; its workers are being killed."""

    type: Literal["leaving"] = "leaving"
    pilot_id: str
    reason: str  # "signal", "told", "lease", "time-limit"
    told_s: float | None = None  # when it heard that it must go, its own clock
    left_s: float | None = None  # when it said so


class CopySettled(_Message):
    """Answer to ``SettleCopy``."""

    type: Literal["copy-settled"] = "copy-settled"
    trainer_id: str
    problem: str = ""  # why it is not on disk


# ---- daemon → agent ---------------------------------------------------------------


class Welcome(_Message):
    """Answer to ``Hello``."""

    type: Literal["welcome"] = "welcome"
    heartbeat_s: float
    lease_s: float
    interpreters: list[str] = Field(default_factory=list)  # templates to warm


class StartWorker(_Message):
    """Fork a worker from the warm template of ``interpreter``, or start ``program``."""

    type: Literal["start-worker"] = "start-worker"
    worker_id: str
    trainer_id: str
    interpreter: str
    config: dict[str, Any]  # body of elastic.protocol.WorkerConfig
    program: str = ""  # module of ours that is the worker; "": the template's fork
    options: dict[str, Any] = Field(default_factory=dict)  # what that module is told besides


class TellWorker(_Message):
    """Pass a body on to a worker."""

    type: Literal["tell-worker"] = "tell-worker"
    worker_id: str
    body: dict[str, Any]


class KillWorker(_Message):
    """SIGKILL the worker's process group."""

    type: Literal["kill-worker"] = "kill-worker"
    worker_id: str


class HoldCopy(_Message):
    """Take copies of this trainer's state from whoever proves that it knows ``key``."""

    type: Literal["hold-copy"] = "hold-copy"
    trainer_id: str
    key: str = Field(repr=False)
    generation: int  # none of an earlier one


class DropCopy(_Message):
    """Forget the trainer's copy and its key."""

    type: Literal["drop-copy"] = "drop-copy"
    trainer_id: str


class SettleCopy(_Message):
    """Nobody of the trainer is left: put its copy on disk as a checkpoint."""

    type: Literal["settle-copy"] = "settle-copy"
    trainer_id: str
    directory: str


class Leave(_Message):
    """Kill all workers and exit 0."""

    type: Literal["leave"] = "leave"
    reason: str


class Refused(_Message):
    """The daemon does not know this agent (or fences it); it must exit."""

    type: Literal["refused"] = "refused"
    reason: str


CopyOrder = HoldCopy | DropCopy | SettleCopy
FromAgent = Annotated[
    Hello | Heartbeat | WorkerStarted | WorkerSaid | WorkerExited | CopySettled | Leaving,
    Field(discriminator="type"),
]
ToAgent = Annotated[
    Welcome | StartWorker | TellWorker | KillWorker | CopyOrder | Leave | Refused,
    Field(discriminator="type"),
]
AgentMessage = Hello | Heartbeat | WorkerStarted | WorkerSaid | WorkerExited | CopySettled | Leaving
DaemonMessage = Welcome | StartWorker | TellWorker | KillWorker | CopyOrder | Leave | Refused
_FROM_AGENT: TypeAdapter[AgentMessage] = TypeAdapter(FromAgent)
_TO_AGENT: TypeAdapter[DaemonMessage] = TypeAdapter(ToAgent)


def encode(message: AgentMessage | DaemonMessage) -> bytes:
    """Return the frame of a message."""
    frame = message.model_dump_json().encode()
    if len(frame) > MAX_MESSAGE_BYTES:
        raise WireError(f"{message.type} is longer than {MAX_MESSAGE_BYTES} bytes")
    return frame


def decode_from_agent(frame: bytes) -> AgentMessage:
    """Parse a frame an agent sent; raise ``WireError`` for anything else."""
    return _decode(_FROM_AGENT, frame)


def decode_to_agent(frame: bytes) -> DaemonMessage:
    """Parse a frame the daemon sent; raise ``WireError`` for anything else."""
    return _decode(_TO_AGENT, frame)


_M = TypeVar("_M")


def _decode(adapter: TypeAdapter[_M], frame: bytes) -> _M:
    if len(frame) > MAX_MESSAGE_BYTES:
        raise WireError("frame too long")
    try:
        return adapter.validate_json(frame)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        raise WireError(f"not a message: {first['msg']} at {first['loc']}") from problem
