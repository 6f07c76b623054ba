"""Agents: their keys and configurations, and what they said of themselves.

A pilot gets its own directory with a private key and a configuration file, both
0600, written before the batch system hears of it; only paths travel in arguments.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from bftrainer.actuate.group import NodeOffer
from bftrainer.actuate.stray_pilots import forget_secrets
from bftrainer.errors import BftError
from bftrainer.policy.model import SitePolicy
from bftrainer.wire.agent_config import AgentConfig
from bftrainer.wire.keys import KeyPair, save_pair
from bftrainer.wire.messages import Hello, Welcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFiles:
    """Where a pilot's files are."""

    directory: Path
    config: Path
    log: Path

    @property
    def argv(self) -> tuple[str, ...]:
        """The batch script: the agent itself, isolated from the user's environment."""
        return (sys.executable, "-I", "-m", "trainers.agent", "--config", str(self.config))


class AgentBook:
    """What the daemon knows about connected agents."""

    def __init__(
        self, *, state_dir: Path, policy: SitePolicy, incarnation: int, keys: KeyPair
    ) -> None:
        self._pilots_dir = state_dir / "pilots"
        self._policy = policy
        self._incarnation = incarnation
        self._keys = keys
        self.endpoint = ""
        self.connected: dict[str, Hello] = {}

    def write_files(
        self,
        pilot_id: str,
        node: str,
        keys: KeyPair,
        address: str,
        gpus: int,
        interpreter: str = "",
    ) -> AgentFiles:
        """Make the directory of a new pilot (blocking, any thread).

        Args:
            pilot_id: whose.
            node: where it will be.
            keys: of its agent.
            address: of its data plane; "" lets the agent find its own.
            gpus: of the node.
            interpreter: what it most likely has to run, so that it begins at once.
        """
        directory = self._pilots_dir / pilot_id
        try:
            directory.mkdir(parents=True, mode=0o700)
        except OSError as problem:
            raise BftError(
                "BFT-2216",
                f"The directory {directory} of a pilot cannot be made: {problem.strerror}.",
                "See that the disk of the state directory has space and is writable.",
            ) from problem
        save_pair(keys, directory / "agent.key")
        config = AgentConfig(
            pilot_id=pilot_id,
            node=node,
            address=address,
            daemon_endpoint=self.endpoint,
            daemon_public_key=self._keys.public,
            key_file=directory / "agent.key",
            state_dir=directory,
            incarnation=self._incarnation,
            heartbeat_s=self._policy.heartbeat_s,
            lease_s=self._policy.lease_s,
            worker_lease_s=self._policy.worker_lease_s,
            gpus=gpus,
            interpreters=(interpreter,) if interpreter else (),
        )
        config.save(directory / "agent.json")
        return AgentFiles(
            directory=directory,
            config=directory / "agent.json",
            log=directory / "agent.log",
        )

    def forget(self, pilot_id: str) -> None:
        """Drop the agent and its secrets; its log stays for whoever asks why."""
        self.connected.pop(pilot_id, None)
        forget_secrets(self._pilots_dir / pilot_id)

    def remove_old(self, keep: int) -> None:
        """Keep the directories of the newest pilots only."""
        old = sorted(p for p in self._pilots_dir.glob("p*") if not (p / "agent.key").exists())
        for directory in old[: max(0, len(old) - keep)]:
            shutil.rmtree(directory, ignore_errors=True)

    def offer(self, pilot_id: str) -> NodeOffer | None:
        """The node of a connected agent, as trainers see it."""
        hello = self.connected.get(pilot_id)
        if hello is None:
            return None
        return NodeOffer(
            node=hello.node,
            pilot_id=pilot_id,
            address=hello.address,
            agent_endpoint=hello.peer_endpoint,
            agent_public_key=hello.peer_public_key,
            copy_port=hello.copy_port,
        )

    def welcome(self, interpreters: list[str]) -> Welcome:
        """The daemon's answer to Hello, and its regular sign of life."""
        return Welcome(
            heartbeat_s=self._policy.heartbeat_s,
            lease_s=self._policy.lease_s,
            interpreters=interpreters,
        )
