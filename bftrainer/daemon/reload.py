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
from typing import TYPE_CHECKING, Final

from bftrainer.daemon.state import InForce
from bftrainer.decide.policies.base import load_policy as load_allocation_policy
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.views import ReloadView, SettingChange
from bftrainer.site.policy.changes import changes, reloaded
from bftrainer.site.policy.model import SitePolicy, policy_hash

if TYPE_CHECKING:
    from bftrainer.daemon.daemon import Daemon

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

    def __init__(self, daemon: Daemon, read: Callable[[], SitePolicy] | None) -> None:
        """Reload with ``read`` (blocking, any thread); None: there is no file."""
        self._daemon, self._read = daemon, read
        self._next: SitePolicy | None = None
        self._one_by_one = asyncio.Lock()
        self._trouble = ""
        self._waiting: tuple[str, ...] = ()

    def notes(self) -> tuple[str, ...]:
        """Return what an administrator should know, a sentence each."""
        waiting = ", ".join(self._waiting)
        return tuple(
            note
            for note in (
                self._trouble,
                f"{waiting}: as before the last reload, until the daemon is restarted."
                if waiting
                else "",
            )
            if note
        )

    async def reload(self, by: str) -> ReloadView:
        """Read the policy; the next decision goes by it.

        Raises:
            BftError: BFT-1546, there is none to read; BFT-21xx, it has mistakes. All stays.
        """
        async with self._one_by_one:
            self._daemon.manager.reloading()
            try:
                new = await asyncio.to_thread(self._read_whole)
            except BftError as error:
                self._trouble = f"The last reload was refused: {error}"
                LOG.error("%s asked to reload the policy: %s", by, error)  # noqa: TRY400 - its fault
                raise
            finally:
                self._daemon.manager.ready(self._daemon.in_force.policy)
            found = changes(self._daemon.in_force.policy, new)
            self._next = reloaded(self._daemon.in_force.policy, new)
            self._trouble = ""
            self._waiting = tuple(one.setting for one in found if one.restart)
            LOG.info(
                "%s reloads the policy: %s",
                by,
                ", ".join(one.setting for one in found) or "as it was",
            )
            self._daemon.decide_soon()
            return ReloadView(policy_hash=policy_hash(self._next), changes=found)

    def on_signal(self) -> None:
        """Reload in the background; log and status say what was wrong."""
        self._daemon.background.run(self._reload_quietly())

    async def _reload_quietly(self) -> None:
        with suppress(BftError):
            await self.reload("SIGHUP")

    def put_in_force(self) -> None:
        """Make the policy read last the daemon's; call it between two decisions."""
        new, self._next = self._next, None
        daemon, old = self._daemon, self._daemon.in_force.policy
        if new is None or new == old:
            return
        force, following = daemon.in_force, InForce.of(new, daemon.system)
        before, found = force.policy_hash, changes(old, new)
        force.policy, force.policy_hash = new, following.policy_hash
        force.settings, force.allocate = following.settings, following.allocate
        changed = PolicyChanged(policy_hash=force.policy_hash, before=before, changes=found)
        daemon.journal.note(KIND, changed)
        daemon.deciding.adopt_policy(force)
        daemon.poller.adopt_policy(new)
        daemon.harm.adopt_policy(new)
        daemon.idle_watch.adopt_policy(new)
        daemon.plane.adopt_policy(new)
        daemon.pilots.unreachable_s = new.unreachable_s
        daemon.journal.keep(86_400.0 * new.journal_days)
        daemon.manager.ready(new)  # polls may be further apart now
        logging.getLogger("bftrainer").setLevel(new.log_level.upper())
        _forget(daemon, {one.setting for one in found})
        LOG.info("policy %s is in force", force.policy_hash[:12])

    def _read_whole(self) -> SitePolicy:
        if self._read is None:
            raise UsageError(
                "BFT-1546",
                "The daemon was started without a policy file.",
                "Start it with --policy FILE.",
            )
        new = self._read()
        load_allocation_policy(new.policy)  # imports take time
        return new


def _forget(daemon: Daemon, changed: set[str]) -> None:
    """Drop what was learnt under settings that hold no more, as at a start."""
    memory = daemon.seen.memory
    if changed & {"policy", "policy_options"}:
        memory = replace(memory, policy_state=None)
    if not daemon.in_force.policy.straggler_threshold:
        memory = replace(memory, slow_nodes={})
    daemon.seen.memory = memory
