"""``agent.json``: what an agent needs to connect to the daemon.

Written by the daemon into the pilot's directory (0600) and read by the agent; none of it is
ever in an argument list or in the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bftrainer.fleet.wire.keys import Z85_KEY_CHARS, read_private, write_private
from bftrainer.model.errors import UsageError

# Not written while they have their defaults: agents of releases before do not know them.
ADDED = ("tidies", "agent_timeout_s", "endpoints", "network", "ports")
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AgentConfig(BaseModel):
    """The contents of ``agent.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    pilot_id: str = Field(min_length=1)
    daemon_endpoint: str = Field(pattern=r"^tcp://.+:\d+$")
    daemon_public_key: str = Field(min_length=Z85_KEY_CHARS, max_length=Z85_KEY_CHARS)
    key_file: Path  # the agent's own CURVE pair, a 0600 file
    state_dir: Path  # directory of the templates' logs; both may be relative to this file's
    node: str = Field(min_length=1)
    incarnation: int = Field(default=0, ge=0)
    address: str = ""  # data-plane address; "": what the node's host name resolves to
    end_s: float | None = None  # wall clock: end of the pilot's time limit
    end_margin_s: float = Field(default=5.0, ge=0)  # leave this much earlier
    heartbeat_s: Seconds = 1.0
    lease_s: Seconds = 1800.0
    agent_timeout_s: Seconds = 5.0  # without any sign of the daemon the path to it is dead
    worker_lease_s: Seconds = 10.0
    gpus: int = Field(default=0, ge=0)
    interpreters: tuple[str, ...] = ()  # templates to start first
    endpoint_file: Path | None = None  # says where a daemon is that has moved to another host
    tidies: bool = False  # the directory is the user's, so nobody else removes keys and old logs
    endpoints: tuple[str, ...] = ()  # further ones at which the daemon may be found
    network: str = ""  # of the data plane (policy ``training_network``); "": the daemon's
    ports: str = ""  # that the agent and its workers may listen on; "": any

    def text(self) -> str:
        """Return the file's contents, without what agents of releases before do not know."""
        added = {name: AgentConfig.model_fields[name].default for name in ADDED}
        unused = {name for name, default in added.items() if getattr(self, name) == default}
        return self.model_dump_json(indent=1, exclude=unused)

    def save(self, path: Path) -> None:
        """Write the file; BFT-1302 when it exists."""
        write_private(path, self.text().encode())

    @classmethod
    def load(cls, path: Path) -> AgentConfig:
        """Read the file.

        Raises:
            BftError: BFT-1302 when it is not private, BFT-1303 when it is malformed.
        """
        try:
            config = cls.model_validate_json(read_private(path))
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "top level"
            raise UsageError(
                "BFT-1303",
                f"The agent configuration {path} is malformed at {where}: {first['msg']}.",
                "The daemon writes it: run daemon and agents from one installation.",
            ) from problem
        places = {"key_file": config.key_file, "state_dir": config.state_dir}
        there = path.absolute().parent
        return config.model_copy(update={name: there / place for name, place in places.items()})
