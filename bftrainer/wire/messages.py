"""Messages between daemon and agents; validated on both sides, never pickle.

Each carries the schema version and the daemon's incarnation (fencing: an agent
refuses smaller incarnations than it has seen). Bodies of and for workers are those of
``bftrainer.elastic.protocol``, which says what they may hold. Numbers are finite and in
range, texts bounded; those shown to people are brought into one line. The parser itself
follows 200 brackets within each other at most.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from bftrainer.elastic import fields

SCHEMA: Literal[1] = 1
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_WORD_BYTES = 256 * 1024  # of whatever an agent says but Hello
MAX_HELLO_BYTES = 64 * 1024  # with what its workers said last, ...
MAX_MEMBER_BYTES = 1024  # ... and so much for each agent there is, for they are in rosters
MAX_LISTED = 4096
_HELLO = re.compile(rb'\{"v":\d+,"incarnation":\d+,"type":"hello"')  # as ``encode`` begins it

Count = Annotated[int, Field(ge=0, le=fields.MOST)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(ge=0, le=fields.MOST, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=fields.MOST_NAME)]
Path = Annotated[str, Field(max_length=fields.MOST_PATH)]
Words = Annotated[str, AfterValidator(fields.words)]


class WireError(Exception):
    """A frame that is not one of our messages (BFT-1301)."""


class LongHelloError(WireError):
    """A Hello that no honest agent can have sent."""


class Strict(BaseModel):
    """No other fields, and no text or truth in place of a number."""

    # "forbid" would make an error of each of many thousand unknown fields.
    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    @model_validator(mode="after")
    def _knows_all(self) -> Self:
        if self.model_extra:
            raise ValueError(f"unknown field {fields.shown(next(iter(self.model_extra)))}")
        return self


class _Message(Strict):
    v: Literal[1] = SCHEMA
    incarnation: Count = 0


class WorkerReport(Strict):
    """An agent's knowledge of one of its workers, enough to adopt it again."""

    worker_id: Name
    trainer_id: Name
    pid: Count
    commit: dict[str, Any] | None = None  # last Commit passed on
    latest: list[dict[str, Any]] = Field(
        default_factory=list
    )  # newest body of each type, oldest first


class HeldCopy(Strict):
    """A complete copy of a trainer's state in an agent's memory."""

    trainer_id: Name
    generation: Count
    step: Count
    samples: Count
    size_bytes: Count
    age_s: Seconds  # since it was complete


# ---- agent → daemon ---------------------------------------------------------------


class Hello(_Message):
    """First message of every connection, and again after a daemon's return."""

    type: Literal["hello"] = "hello"
    pilot_id: Name
    node: Name
    address: Name  # data-plane address of this node
    pid: Count
    peer_endpoint: Name
    peer_public_key: Name
    gpus: Count = 0
    end_s: Seconds | None = None  # when the pilot's time limit strikes
    workers: list[WorkerReport] = Field(default_factory=list, max_length=MAX_LISTED, fail_fast=True)
    copy_port: Port = 0  # where it takes copies of other nodes' trainers; 0: nowhere
    copies: list[HeldCopy] = Field(default_factory=list, max_length=MAX_LISTED, fail_fast=True)


class Heartbeat(_Message):
    """Every ``heartbeat_s``; its absence for ``agent_timeout_s`` is a loss."""

    type: Literal["heartbeat"] = "heartbeat"
    pilot_id: Name
    workers: list[Name] = Field(default_factory=list, max_length=MAX_LISTED, fail_fast=True)


class WorkerStarted(_Message):
    """The template forked the worker."""

    type: Literal["worker-started"] = "worker-started"
    worker_id: Name
    pid: Count


class WorkerSaid(_Message):
    """A body from a worker."""

    type: Literal["worker-said"] = "worker-said"
    worker_id: Name
    body: dict[str, Any]


class WorkerExited(_Message):
    """A worker is gone, for whatever reason."""

    type: Literal["worker-exited"] = "worker-exited"
    worker_id: Name
    returncode: Annotated[int, Field(ge=-(2**31), lt=2**31)]  # negative: killed by that signal
    cause: Words = ""  # e.g. "the interpreter /x/python has no torch"


class Leaving(_Message):
    """The agent exits now; its workers are being killed."""

    type: Literal["leaving"] = "leaving"
    pilot_id: Name
    reason: Words  # "signal", "told", "lease", "time-limit"
    told_s: Seconds | None = None  # when it heard that it must go, its own clock
    left_s: Seconds | None = None  # when it said so


class CopySettled(_Message):
    """Answer to ``SettleCopy``."""

    type: Literal["copy-settled"] = "copy-settled"
    trainer_id: Name
    problem: Words = ""  # why it is not on disk


# ---- daemon → agent ---------------------------------------------------------------


class Welcome(_Message):
    """Answer to ``Hello``."""

    type: Literal["welcome"] = "welcome"
    heartbeat_s: Seconds
    lease_s: Seconds
    interpreters: list[Path] = Field(default_factory=list)  # templates to warm


class StartWorker(_Message):
    """Fork a worker from the warm template of ``interpreter``, or start ``program``."""

    type: Literal["start-worker"] = "start-worker"
    worker_id: Name
    trainer_id: Name
    interpreter: Path
    config: dict[str, Any]  # body of elastic.protocol.WorkerConfig
    program: Name = ""  # module of ours that is the worker; "": the template's fork
    options: dict[str, Any] = Field(default_factory=dict)  # what that module is told besides


class TellWorker(_Message):
    """Pass a body on to a worker."""

    type: Literal["tell-worker"] = "tell-worker"
    worker_id: Name
    body: dict[str, Any]


class KillWorker(_Message):
    """SIGKILL the worker's process group."""

    type: Literal["kill-worker"] = "kill-worker"
    worker_id: Name


class HoldCopy(_Message):
    """Take copies of this trainer's state from whoever proves that it knows ``key``."""

    type: Literal["hold-copy"] = "hold-copy"
    trainer_id: Name
    key: Name = Field(repr=False)
    generation: Count  # none of an earlier one


class DropCopy(_Message):
    """Forget the trainer's copy and its key."""

    type: Literal["drop-copy"] = "drop-copy"
    trainer_id: Name


class SettleCopy(_Message):
    """Nobody of the trainer is left: put its copy on disk as a checkpoint."""

    type: Literal["settle-copy"] = "settle-copy"
    trainer_id: Name
    directory: Path


class Leave(_Message):
    """Kill all workers and exit 0."""

    type: Literal["leave"] = "leave"
    reason: Words


class Refused(_Message):
    """The daemon does not know this agent (or fences it); it must exit."""

    type: Literal["refused"] = "refused"
    reason: Words


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


def decode_from_agent(frame: bytes, n_agents: int = 1) -> AgentMessage:
    """Parse a frame an agent sent.

    Args:
        frame: what came; how long it may be is looked at before anything else.
        n_agents: that there may be.

    Raises:
        WireError: it is no message of an agent; of a Hello that is too long ``LongHelloError``.
    """
    is_hello = _HELLO.match(frame) is not None
    most = MAX_HELLO_BYTES + MAX_MEMBER_BYTES * n_agents if is_hello else MAX_WORD_BYTES
    if len(frame) > most:
        problem = f"{'a Hello' if is_hello else 'a message'} of {len(frame)} bytes, not {most}"
        raise (LongHelloError if is_hello else WireError)(problem)
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
        where = ".".join(map(str, first["loc"]))  # names of the sender's among them
        text = fields.in_one_line(f"{first['msg'][:300]} at {where[:100]}")
        raise WireError(f"not a message: {text}") from None
