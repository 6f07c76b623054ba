"""Messages between daemon and agents; validated on both sides, never pickle.

Each carries the schema version and the daemon's incarnation (fencing: an agent refuses
incarnations smaller than the greatest it has seen). Bodies from and for workers are those of
``bftrainer.ground.protocol``. Numbers are finite and in range, texts bounded; texts for display
are reduced to one line. The parser itself allows at most 200 nested brackets.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from bftrainer.ground import fields

SCHEMA: Literal[1] = 1
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_WORD_BYTES = 256 * 1024  # of an agent's message other than Hello
MAX_HELLO_BYTES = 64 * 1024  # with its workers' last messages, ...
MAX_MEMBER_BYTES = 1024  # ... and this much per agent, as rosters list them
MAX_LISTED = 4096
_HELLO = re.compile(rb'\{"v":\d+,"incarnation":\d+,"type":"hello"')  # as in ``encode``

Count = Annotated[int, Field(ge=0, le=fields.MOST)]
Seconds = Annotated[float, Field(ge=0, le=fields.MOST, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=fields.MOST_NAME)]
Path = Annotated[str, Field(max_length=fields.MOST_PATH)]
Words = Annotated[str, AfterValidator(fields.words)]


class WireError(Exception):
    """A frame that is not one of our messages (BFT-1301)."""


class LongHelloError(WireError):
    """A Hello longer than any that an intact agent sends."""


class Strict(BaseModel):
    """Base model: no unknown fields, no conversion of texts or booleans to numbers."""

    # "forbid" would create an error for each of possibly many thousand unknown fields.
    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    REMOVED: ClassVar = frozenset[str]()  # fields that agents of earlier releases still send

    @model_validator(mode="after")
    def _knows_all(self) -> Self:
        unknown = [name for name in self.model_extra or () if name not in self.REMOVED]
        if unknown:
            raise ValueError(f"unknown field {fields.shown(unknown[0])}")
        return self


class _Message(Strict):
    v: Literal[1] = SCHEMA
    incarnation: Count = 0


class WorkerReport(Strict):
    """State of one of an agent's workers, enough for a daemon to adopt it."""

    worker_id: Name
    trainer_id: Name
    pid: Count
    commit: dict[str, Any] | None = None  # last Commit forwarded
    latest: list[dict[str, Any]] = Field(
        default_factory=list
    )  # newest body of each type, oldest first


# ---- agent → daemon ---------------------------------------------------------------


class Hello(_Message):
    """First message of every connection; repeated while the daemon is silent."""

    REMOVED: ClassVar = frozenset({"copy_port", "copies"})

    type: Literal["hello"] = "hello"
    pilot_id: Name
    node: Name
    address: Name  # data-plane address of this node
    pid: Count
    peer_endpoint: Name
    peer_public_key: Name
    gpus: Count = 0
    end_s: Seconds | None = None  # end of the pilot's time limit
    workers: list[WorkerReport] = Field(default_factory=list, max_length=MAX_LISTED, fail_fast=True)


class Heartbeat(_Message):
    """Sent every ``heartbeat_s``; after ``agent_timeout_s`` without one the agent is lost."""

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
    """A worker has ended."""

    type: Literal["worker-exited"] = "worker-exited"
    worker_id: Name
    returncode: Annotated[int, Field(ge=-(2**31), lt=2**31)]  # negative: killed by that signal
    cause: Words = ""  # e.g. "the interpreter /x/python has no torch"


class Ending(_Message):
    """The batch system will end the pilot: its workers should leave, then the agent does."""

    type: Literal["ending"] = "ending"
    pilot_id: Name
    grace_s: Seconds  # until then


class Leaving(_Message):
    """The agent exits now; its workers are being killed."""

    type: Literal["leaving"] = "leaving"
    pilot_id: Name
    reason: Words  # "signal", "told", "lease", "time-limit"
    told_s: Seconds | None = None  # when it received the signal or order, its own clock
    left_s: Seconds | None = None  # when it sent this message


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
    config: dict[str, Any]  # body of ground.protocol.WorkerConfig
    program: Name = ""  # our module that runs as the worker; "": the template's fork
    options: dict[str, Any] = Field(default_factory=dict)  # further arguments of that module


class TellWorker(_Message):
    """Forward a body to a worker."""

    type: Literal["tell-worker"] = "tell-worker"
    worker_id: Name
    body: dict[str, Any]


class KillWorker(_Message):
    """SIGKILL the worker's process group."""

    type: Literal["kill-worker"] = "kill-worker"
    worker_id: Name


class Leave(_Message):
    """Kill all workers and exit 0."""

    type: Literal["leave"] = "leave"
    reason: Words


class Refused(_Message):
    """The daemon does not know or fences this agent, which must exit."""

    type: Literal["refused"] = "refused"
    reason: Words


FromAgent = Annotated[
    Hello | Heartbeat | WorkerStarted | WorkerSaid | WorkerExited | Ending | Leaving,
    Field(discriminator="type"),
]
ToAgent = Annotated[
    Welcome | StartWorker | TellWorker | KillWorker | Leave | Refused,
    Field(discriminator="type"),
]
AgentMessage = Hello | Heartbeat | WorkerStarted | WorkerSaid | WorkerExited | Ending | Leaving
DaemonMessage = Welcome | StartWorker | TellWorker | KillWorker | Leave | Refused
_FROM_AGENT: TypeAdapter[AgentMessage] = TypeAdapter(FromAgent)
_TO_AGENT: TypeAdapter[DaemonMessage] = TypeAdapter(ToAgent)


def encode(message: AgentMessage | DaemonMessage) -> bytes:
    """Return the frame of a message."""
    frame = message.model_dump_json().encode()
    if len(frame) > MAX_MESSAGE_BYTES:
        raise WireError(f"{message.type} is longer than {MAX_MESSAGE_BYTES} bytes")
    return frame


def decode_from_agent(frame: bytes, n_agents: int = 1) -> AgentMessage:
    """Parse a frame that one of ``n_agents`` agents sent.

    ``WireError``: it is not a message of an agent; ``LongHelloError``: an overlong Hello.
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
        where = ".".join(map(str, first["loc"]))  # may contain names chosen by the sender
        text = fields.in_one_line(f"{first['msg'][:300]} at {where[:100]}")
        raise WireError(f"not a message: {text}") from None
