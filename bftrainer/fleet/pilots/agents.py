"""Agents: their keys and configurations, and what they reported about themselves.

A pilot gets its own directory with a private key and a configuration file, both 0600, written
before the pilot is submitted. Arguments contain paths only.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bftrainer.batch.process import own_python
from bftrainer.fleet.generations.members import NodeOffer
from bftrainer.fleet.pilots.strays import forget_secrets
from bftrainer.fleet.wire.endpoint import AgentConfig, remember
from bftrainer.fleet.wire.keys import KeyPair, pair_text, save_pair
from bftrainer.fleet.wire.messages import Hello, Welcome
from bftrainer.model.errors import BftError
from bftrainer.site.policy.model import SitePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFiles:
    """The files of a pilot."""

    directory: Path
    contents: Mapping[str, str]  # to be written by the user

    @property
    def config(self) -> Path:
        """The agent's configuration."""
        return self.directory / "agent.json"

    @property
    def log(self) -> Path:
        """The agent's log."""
        return self.directory / "agent.log"

    @property
    def argv(self) -> tuple[str, ...]:
        """The batch script: the agent itself, isolated from the user's environment."""
        return own_python("trainers.agent", "--config", str(self.config), is_isolated=True)


class AgentBook:
    """The agents that the daemon knows, and their reports."""

    def __init__(
        self, *, pilots_dir: Path, policy: SitePolicy, incarnation: int, keys: KeyPair
    ) -> None:
        self._pilots_dir = pilots_dir
        self.policy = policy
        self._incarnation = incarnation
        self._keys = keys
        self.endpoint = ""
        self.further: tuple[str, ...] = ()  # where agents may find us, too
        self._endpoint_file: Path | None = None  # that agents read, too
        self.connected: dict[str, Hello] = {}
        self.away: dict[str, str] = {}  # pilot -> node: the daemon is cut off from their agents

    @property
    def held(self) -> Mapping[str, str]:
        """The nodes that agents hold, heard or not, by pilot."""
        return {**self.away, **{pilot_id: h.node for pilot_id, h in self.connected.items()}}

    @property
    def offered(self) -> tuple[str, ...]:
        """All endpoints at which agents may find us, the most probable first."""
        return (self.endpoint, *self.further)

    def places(self) -> str:
        """Say where to look if agents do not connect."""
        return (
            f"See the output of their jobs ({self._pilots_dir}/ID/agent.log; all nodes have to see"
            " that directory: pilots_dir), the log of the batch system on that node (slurmd.log,"
            f" sbatchd.log), and whether nodes reach {', '.join(self.offered)}."
        )

    def offer_ourselves(self, endpoints: Sequence[str], file: Path | None) -> None:
        """Say at which endpoints, the most probable first, agents may find us.

        ``file`` names them (``wire.endpoint``), as agents of releases before read it; None: agents
        see none.
        """
        self.endpoint, *further = endpoints
        self.further, self._endpoint_file = tuple(further), file
        if further and file is None:
            self._endpoint_file = self._pilots_dir / "endpoint"
            remember(self._endpoint_file, *endpoints)

    def endpoint_on(self, node: str) -> str:
        """Return where peers find the connected agent of a node; "": there is none."""
        for hello in self.connected.values():
            if hello.node == node:
                return hello.peer_endpoint
        return ""

    def write_files(
        self,
        pilot_id: str,
        node: str,
        keys: KeyPair,
        address: str,
        gpus: int,
        interpreter: str = "",
        user: str = "",
    ) -> AgentFiles:
        """Create the directory of a new pilot (blocking, any thread).

        If it runs as another ``user``, the directory only keeps its number from being used again;
        the submit helper makes another one, and writes the contents that are returned. The template
        of the ``interpreter`` starts early; without an ``address`` of its data plane the agent
        finds its own.
        """
        directory = self._pilots_dir / pilot_id
        try:
            directory.mkdir(parents=True, mode=0o700)
        except OSError as problem:
            raise BftError(
                "BFT-2216",
                f"The directory {directory} for a pilot cannot be created: {problem.strerror}.",
                "Check that the state directory is writable and its disk has space.",
            ) from problem
        config = AgentConfig(
            pilot_id=pilot_id,
            node=node,
            address=address,
            daemon_endpoint=self.endpoint,
            network=self.policy.training_network or "",
            ports=self.policy.ports or "",
            daemon_public_key=self._keys.public,
            key_file=directory / "agent.key",
            state_dir=directory,
            incarnation=self._incarnation,
            heartbeat_s=self.policy.heartbeat_s,
            lease_s=self.policy.lease_s,
            agent_timeout_s=self.policy.agent_timeout_s,
            worker_lease_s=self.policy.worker_lease_s,
            gpus=gpus,
            interpreters=(interpreter,) if interpreter else (),
            endpoint_file=self._endpoint_file,
        )
        if not user:
            save_pair(keys, directory / "agent.key")
            config.save(directory / "agent.json")
            return AgentFiles(directory=directory, contents={})
        config = config.model_copy(
            update={
                "endpoints": self.further,  # it sees no file of ours
                "key_file": Path("agent.key"),
                "state_dir": Path(),
                "endpoint_file": None,
                "tidies": True,
            }
        )
        contents = {"agent.json": config.text(), "agent.key": pair_text(keys)}
        return AgentFiles(directory=directory, contents=contents)

    def forget(self, pilot_id: str) -> None:
        """Drop the agent and its secrets; its log stays for inspection."""
        self.connected.pop(pilot_id, None)
        self.away.pop(pilot_id, None)
        forget_secrets(self._pilots_dir / pilot_id)

    def remove_old(self, keep: int) -> None:
        """Remove old pilots' directories except the newest ``keep``."""
        directories = sorted(self._pilots_dir.glob("p*"))
        ended = [path for path in directories if not (path / "agent.key").exists()]
        for directory in ended[: max(0, len(ended) - keep)]:
            shutil.rmtree(directory, ignore_errors=True)

    def offer(self, pilot_id: str, user: str = "") -> NodeOffer | None:
        """Return the node of a connected agent, which runs as ``user``, as trainers see it."""
        hello = self.connected.get(pilot_id)
        if hello is None:
            return None
        return NodeOffer(
            node=hello.node,
            pilot_id=pilot_id,
            address=hello.address,
            agent_endpoint=hello.peer_endpoint,
            agent_public_key=hello.peer_public_key,
            user=user,
        )

    def welcome(self, interpreters: list[str]) -> Welcome:
        """Return the daemon's answer to Hello, also its regular heartbeat."""
        return Welcome(
            heartbeat_s=self.policy.heartbeat_s,
            lease_s=self.policy.lease_s,
            interpreters=interpreters,
        )
