"""The agent of a pilot: connects configuration, templates, workers, daemon, peers and signals.

The process exits with status 0 whenever it has to leave, whatever the reason. Called by
``python -m trainers.agent`` and ``bftrainer agent``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import NamedTuple, NoReturn

from bftrainer.batch.addresses import LOOPBACK, host_addresses, host_of, in_network, source_towards
from bftrainer.elastic.process.worker_keeper import adopt, remove_unmapped
from bftrainer.fleet.logs import OneLine
from bftrainer.fleet.wire import messages
from bftrainer.fleet.wire.endpoint import AgentConfig
from bftrainer.fleet.wire.keys import generate_pair, load_pair
from bftrainer.fleet.wire.peers import PeerServer
from bftrainer.ground import ports, protocol
from bftrainer.model.errors import BftError
from trainers.agent.gpus import GpuWatch
from trainers.agent.link import DaemonLink
from trainers.agent.peer_recovery import PeerRecovery
from trainers.agent.preambles import forget, tidy
from trainers.agent.reach import ReachSearches
from trainers.agent.signals import DEVICE_LIMIT_S, EXIT_LIMIT_S, SignalWaiter
from trainers.agent.start import PilotDirectory, Started
from trainers.agent.workers import Said, Workers

LOG = logging.getLogger("bftrainer.agent")
GRACE = "BFT_GRACE_S"  # set where the batch system waits this long before it ends a pilot
WATCHES_PER_LEASE = 32  # a silent worker is noticed at most 1/32 of its lease late


class LeaveOrder(NamedTuple):
    """Why the agent is to leave, and since when."""

    reason: str
    since_s: float


class Agent:
    """One pilot's agent; lives until ``leave``."""

    def __init__(
        self, config: AgentConfig, started: Mapping[str, Started], directory: PilotDirectory
    ) -> None:
        self._config = config
        self._directory = directory
        self._address = ""  # of our data plane; known when the daemon is found
        if config.ports:
            os.environ[ports.VARIABLE] = config.ports  # of templates, and so of workers
        # A separate key pair for peers, kept in memory only.
        self._peer_keys = generate_pair()
        self._peer_endpoint = ""
        self._leaves: LeaveOrder | None = None  # when its workers have left
        self._workers = Workers(
            log_dir=config.state_dir,
            gpus=config.gpus,
            report=self._report,
            on_commit=self._allow_members,
            started=started,
        )
        self._reach = ReachSearches(self._workers.teams, self._report)
        self._gpus = GpuWatch(self._workers.teams, self._report)
        self._orphaned = PeerRecovery(
            pilot_id=config.pilot_id,
            daemon_endpoint=lambda: self._link.endpoint,
            keys=self._peer_keys,
            workers=self._workers,
            silent=self._reach.silent,
            is_up=lambda: self._link.is_up,
            was_in_touch=lambda: self._link.was_in_touch,
        )
        self._peers = PeerServer(keys=self._peer_keys, answer=self._orphaned.answer)
        self._link = DaemonLink(
            config,
            load_pair(config.key_file),
            hello=self._hello,
            worker_ids=self._workers.ids,
            ends=self._workers.ends,
            on_order=self._obey,
            on_expired=self.leave,
            on_down=self._daemon_lost,
        )

    async def run(self, waiter: SignalWaiter) -> None:
        """Serve until ``leave`` ends the process."""
        adopt()
        loop = asyncio.get_running_loop()
        waiter.on_overdue = self._vanish
        soon = loop.call_soon_threadsafe
        waiter.on_leave = lambda: soon(self._leave_in_order, "signal", waiter.heard_s)
        waiter.patience_s = lambda: DEVICE_LIMIT_S * self._workers.are_on_devices
        if os.environ.get(GRACE):
            waiter.on_notice = lambda: soon(self._noticed, waiter)
        if self._config.address:  # else the daemon's whereabouts say which
            self._listen()
        self._link.start()
        self._watch(loop)
        self._reach.start()
        self._gpus.start()
        Thread(target=self._directory.tidy, daemon=True).start()
        if self._config.tidies:
            Thread(target=tidy, args=(self._config.state_dir,), daemon=True).start()
        LOG.info("agent of %s on %s, pid %d", self._config.pilot_id, self._config.node, os.getpid())
        await loop.create_future()  # never done

    def _listen(self) -> None:
        """Listen for peers, at the address that we tell them from now on."""
        self._address = self._config.address or data_address(self._config, self._link.endpoint)
        self._peer_endpoint = self._peers.start(self._address, self._config.ports)
        self._orphaned.start(self._peer_endpoint)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        lease_s = self._config.worker_lease_s
        self._workers.kill_silent(lease_s)
        self._workers.reap()
        loop.call_later(lease_s / WATCHES_PER_LEASE, self._watch, loop)

    def _daemon_lost(self) -> None:
        if self._leaves is not None:  # nobody will have our workers leave
            self.leave(*self._leaves)
        self._orphaned.daemon_lost()

    def _noticed(self, waiter: SignalWaiter) -> None:
        """Leave when the daemon has had our workers leave; without any, at once."""
        if not self._link.is_up or not self._workers.ids():
            self.leave("signal", waiter.heard_s)
        self._leaves = LeaveOrder("signal", waiter.heard_s or time.time())
        self._link.ending(float(os.environ[GRACE]))

    def _leave_in_order(self, reason: str, told_s: float | None = None) -> None:
        """Leave; if workers are in collectives of devices, when the daemon has had them leave.

        To end a process amid one can leave the devices of all members unusable. The survivors hear
        of a shrink, which begins at a step boundary. At the limit all are killed nevertheless.
        """
        told_s, was_told = told_s or time.time(), self._leaves
        is_over = was_told is not None and was_told.reason == reason  # the grace time, too
        if is_over or not self._workers.are_on_devices or not self._link.is_up:
            self.leave(reason, told_s)
        if was_told is None:
            self._leaves = LeaveOrder(reason, told_s)
            asyncio.get_running_loop().call_later(DEVICE_LIMIT_S, self.leave, reason, told_s)
            if reason == "signal":
                self._link.ending(DEVICE_LIMIT_S)

    def leave(self, reason: str, told_s: float | None = None) -> NoReturn:
        """Kill all descendants, notify the daemon and exit with status 0, whatever happens."""
        told_s = time.time() if told_s is None else told_s
        try:
            wait = self._kill_all()
            self._link.last_words(reason, told_s)
            wait()
            if self._config.tidies:
                forget(self._config.state_dir / "agent.json")
            LOG.info("left: %s", reason)
        except Exception:
            LOG.exception("left: %s, not in order", reason)
        finally:
            os._exit(0)

    def _vanish(self) -> NoReturn:
        try:
            self._kill_all()()
        finally:
            os._exit(0)

    def _kill_all(self) -> Callable[[], None]:
        """End all processes and begin to remove files; return what waits for that a while."""
        groups, directory = self._workers.kill_all(), self._directory

        def remove() -> None:
            for group in groups:
                group.remove()
            directory.remove()
            remove_unmapped()
            self._workers.copies.close()

        thread = Thread(target=remove, daemon=True)
        try:
            thread.start()
        except RuntimeError as problem:  # the user, or the node, may have no more processes
            LOG.warning("files of workers stay: %s", problem)
            return lambda: None
        return lambda: thread.join(EXIT_LIMIT_S)  # not for long: a file system may hang

    def _report(self, message: Said) -> None:
        self._link.report(message)
        self._orphaned.news()
        if self._leaves is not None and not self._workers.ids():
            self.leave(*self._leaves)

    def _hello(self) -> messages.Hello:
        if not self._peer_endpoint:
            try:
                self._listen()
            except BftError as problem:
                LOG.error("%s: %s %s", problem.code, problem.cause, problem.next_step)  # noqa: TRY400
                self.leave(f"{problem.code}: {problem.cause}")
        return messages.Hello(
            pilot_id=self._config.pilot_id,
            node=self._config.node,
            address=self._address,
            pid=os.getpid(),
            peer_endpoint=self._peer_endpoint,
            peer_public_key=self._peer_keys.public,
            gpus=self._config.gpus,
            end_s=self._config.end_s,
            workers=self._workers.reports(),
        )

    def _obey(self, order: messages.DaemonMessage) -> None:
        match order:
            case messages.Welcome():
                self._workers.warm(order.interpreters)
            case messages.StartWorker():
                self._workers.start(order)
            case messages.TellWorker():
                self._workers.tell(order)
            case messages.KillWorker():
                self._workers.kill(order.worker_id)
            case messages.Leave():
                LOG.info("the daemon ordered us to leave: %s", order.reason)
                self._leave_in_order("told")
            case messages.Refused():
                LOG.warning("BFT-1301: the daemon refused us: %s", order.reason)
                self.leave("refused")

    def _allow_members(self, commit: protocol.Commit) -> None:
        for member in commit.members:
            if member.agent_public_key:
                self._peers.allow(member.agent_public_key)


def data_address(config: AgentConfig, daemon_endpoint: str) -> str:
    """Return the address that peers are told: in the policy's network, else towards the daemon."""
    if config.network:
        if addresses := in_network(host_addresses(), config.network):
            return addresses[0]
        LOG.warning("BFT-1313: no address of this host is in training_network %s", config.network)
    return source_towards(host_of(daemon_endpoint)) or LOOPBACK


def run_agent(
    config_path: Path,
    waiter: SignalWaiter,
    started: Mapping[str, Started] | None = None,
    directory: PilotDirectory | None = None,
) -> None:
    """Load the configuration and run the agent; the waiter and templates have been started."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    config = AgentConfig.load(config_path)
    directory = directory or PilotDirectory()

    async def live() -> None:
        await Agent(config, started or {}, directory).run(waiter)

    asyncio.run(live())


def main(
    argv: Sequence[str],
    waiter: SignalWaiter,
    started: Mapping[str, Started],
    directory: PilotDirectory,
) -> int:
    """Parse the arguments and run; errors are printed as code, cause and next step."""
    parser = argparse.ArgumentParser(prog="python -m trainers.agent", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="agent.json of the pilot")
    arguments = parser.parse_args(argv)
    try:
        run_agent(arguments.config, waiter, started, directory)
    except BftError as problem:
        sys.stderr.write(f"error {problem.code}: {problem.cause}\nnext: {problem.next_step}\n")
        return int(problem.exit_code)
    return 0
