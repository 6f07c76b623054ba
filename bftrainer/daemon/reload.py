"""Reads the policy again while the daemon runs (SIGHUP, ``bftrainer policy reload``).

A policy with a mistake changes nothing. A sound one is put in force between two decisions, all of
it at once, and the journal says so. Settings that need a restart keep their values until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from bftrainer.batch.batch_system import BatchSystem
from bftrainer.daemon.state import InForce
from bftrainer.daemon.systemd import ServiceManager
from bftrainer.decide.policies.base import load_policy as load_allocation_policy
from bftrainer.fleet.background import Background
from bftrainer.model.decision import Memory
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.views import ReloadView, SettingChange
from bftrainer.site.policy.changes import changes, reloaded
from bftrainer.site.policy.model import SitePolicy, policy_hash

LOG = logging.getLogger("bftrainer.daemon")
KIND: Final = "policy"  # of journal entries


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChanged:
    """A policy is in force from here on."""

    policy_hash: str
    before: str  # the hash of the one that was
    changes: tuple[SettingChange, ...]


class Reloading:
    """The policy as it was last read, and what hinders it from being in force."""

    def __init__(
        self,
        in_force: InForce,
        system: BatchSystem,
        manager: ServiceManager,
        read: Callable[[], SitePolicy] | None,
    ) -> None:
        """Reload with ``read`` (blocking, any thread); None: there is no file."""
        self._in_force, self._system, self._manager = in_force, system, manager
        self._read = read
        self.on_read: Callable[[], object] = lambda: None  # a policy is to be put in force
        self._next: SitePolicy | None = None
        self._one_by_one = asyncio.Lock()
        self._background = Background()
        self._trouble = ""
        self._waiting: tuple[str, ...] = ()

    def notes(self) -> tuple[str, ...]:
        """Return what an administrator should know, a sentence each."""
        notes = []
        if self._trouble:
            notes.append(self._trouble)
        if self._waiting:
            settings = ", ".join(self._waiting)
            notes.append(f"{settings}: as before the last reload, until the daemon is restarted.")
        return tuple(notes)

    async def reload(self, by: str) -> ReloadView:
        """Read the policy; the next decision goes by it.

        Raises:
            BftError: BFT-1546, there is none to read; BFT-21xx, it has mistakes. All stays.
        """
        async with self._one_by_one:
            self._manager.reloading()
            try:
                read_policy = await asyncio.to_thread(self._read_whole)
            except BftError as error:
                self._trouble = f"The last reload was refused: {error}"
                LOG.error("%s asked to reload the policy: %s", by, error)  # noqa: TRY400 - its fault
                raise
            finally:
                self._manager.ready(self._in_force.policy)
            policy = self._in_force.policy
            differences = changes(policy, read_policy)
            self._next = reloaded(policy, read_policy)
            self._trouble = ""
            self._waiting = tuple(change.setting for change in differences if change.restart)
            settings = ", ".join(change.setting for change in differences)
            LOG.info("%s reloads the policy: %s", by, settings or "as it was")
            self.on_read()
            return ReloadView(policy_hash=policy_hash(self._next), changes=differences)

    def on_signal(self) -> None:
        """Reload in the background; log and status say what was wrong."""
        self._background.run(self._reload_quietly())

    async def _reload_quietly(self) -> None:
        with suppress(BftError):
            await self.reload("SIGHUP")

    def put_in_force(self) -> PolicyChanged | None:
        """Put the policy read last in force; call it between two decisions.

        Returns:
            What has changed, for those who keep values of the policy; None: nothing has.
        """
        following, self._next = self._next, None
        in_force, before = self._in_force, self._in_force.policy
        if following is None or following == before:
            return None
        hash_before = in_force.policy_hash
        in_force.become(following, self._system)
        return PolicyChanged(
            policy_hash=in_force.policy_hash, before=hash_before, changes=changes(before, following)
        )

    def _read_whole(self) -> SitePolicy:
        if self._read is None:
            raise UsageError(
                "BFT-1546",
                "The daemon was started without a policy file.",
                "Start it with --policy FILE.",
            )
        policy = self._read()
        load_allocation_policy(policy.policy)  # imports take time
        return policy


def memory_under(memory: Memory, policy: SitePolicy, changed: PolicyChanged) -> Memory:
    """Return it without what was learnt under settings that hold no more, as at a start."""
    settings = {change.setting for change in changed.changes}
    if settings & {"policy", "policy_options"}:
        memory = replace(memory, policy_state=None)
    if not policy.straggler_threshold:
        memory = replace(memory, slow_nodes={})
    return memory
