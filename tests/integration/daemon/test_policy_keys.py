"""Every key of the policy: a reload brings it to wherever its value is kept, or it says why not.

A daemon that has reloaded is compared with one that was started with the new policy, attribute by
attribute. So nobody can keep a copy of a value that a reload does not reach.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bftrainer.batch.local.adapter import LocalBatchSystem
from bftrainer.batch.local.client import LocalClient
from bftrainer.daemon.daemon import Daemon
from bftrainer.daemon.options import DaemonOptions
from bftrainer.daemon.service import DaemonService
from bftrainer.model.views import ReloadView
from bftrainer.site.policy.model import SitePolicy
from bftrainer.site.policy.render import restart
from tests.integration.daemon_scripts import light_spec

DEFAULT = SitePolicy()
# Where half the default is no sensible other value.
OTHER: dict[str, Any] = {
    "policy": "equal-share",
    "policy_options": {"any": 1},  # not checked without a file
    "eligible_node_types": ("cpu",),
    "batch_options": {"any": 1},
    "pilots_dir": "/somewhere/pilots",
    "control_network": "10.0.0.0/8",
    "training_network": "ib0",
    "ports": "41000-41100",
    "blackouts": ("Mon 08:00-12:00",),
    "container_runtime": "podman",
    "container_mounts": "/data:/data:ro",
    "container_sources": ("/data",),
    "time_zone": "Europe/Zurich",
    "harm_slo_share": 0.75,
    "fair_share_half_life_s": 600.0,
    "max_wait_s": 600.0,
}
# What was, not what is, how much the journal has written, how full the disk is, and whether a
# tick has come since a trainer had nothing to do.
DECIDED = (
    *("seen", "_seen", "_sound", "_shorten", "_before", "_mark", "_marked", "_next_mark"),
    *("looks", "_summed_s", "_chars_since", "_checkpoint_chars", "disk"),
    *("_rested_stimuli", "_rested_record", "_rested_log"),
)
OURS = ("bftrainer.", "milp.")


def other_value(name: str) -> Any:
    """Return a value that is allowed and not the default."""
    default = getattr(DEFAULT, name)
    if name in OTHER:
        return OTHER[name]
    if isinstance(default, bool):
        return not default
    if isinstance(default, Enum):
        return next(value for value in type(default) if value is not default)
    if isinstance(default, dict):
        return {"any": 7}
    if default is None:
        return 7
    return type(default)(default / 2) or default + 1


def changed(*, restarts: bool) -> SitePolicy:
    values = {n: other_value(n) for n in SitePolicy.model_fields if bool(restart(n)) is restarts}
    return SitePolicy.model_validate({**dict(DEFAULT), **values})


@contextlib.asynccontextmanager
async def started(base: Path, policy: SitePolicy, new: SitePolicy) -> AsyncIterator[Daemon]:
    """Run a daemon whose batch system never answers, with one trainer."""
    system = LocalBatchSystem(LocalClient(base / "nobody"))
    options = DaemonOptions(state_dir=base / "state")
    services: list[DaemonService] = []

    def serve(daemon: Daemon) -> DaemonService:
        services.append(DaemonService(daemon))
        return services[0]

    daemon, ready = (
        Daemon(options, policy, system, serve=serve, reread=lambda: new),
        asyncio.Event(),
    )
    running = asyncio.create_task(daemon.run(on_ready=ready.set))
    await ready.wait()
    daemon.state.plane.trainers.submit(light_spec(base / "a"))
    async with asyncio.timeout(30):
        while daemon.state.seen.given is None or not daemon.state.seen.given.trainers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    try:
        yield daemon
    finally:
        daemon.stop()
        await running


async def reload(daemon: Daemon) -> ReloadView:
    view = await daemon.reloading.reload("a test")
    async with asyncio.timeout(30):
        while daemon.in_force.policy_hash != view.policy_hash:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    return view


def facts(daemon: Daemon) -> dict[str, Any]:
    """Return all plain values that can be reached from a daemon, by the way to them."""
    return dict(_facts(daemon, "daemon", ()))


def _facts(thing: Any, way: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if thing is None or isinstance(thing, bool | int | float | str | Enum):
        yield way, thing
        return
    if id(thing) in above:
        return
    parts: dict[Any, Any] = {}
    if isinstance(thing, dict):
        parts = thing
    elif isinstance(thing, tuple | list):
        parts = dict(enumerate(thing))
    elif isinstance(thing, BaseModel):
        parts = dict(thing)
    elif type(thing).__module__.startswith(OURS):
        slots = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
        parts = {name: getattr(thing, name, None) for name in slots} | getattr(
            thing, "__dict__", {}
        )
    for name, part in parts.items():
        if name in DECIDED:
            continue
        yield from _facts(part, f"{way}.{name}", (*above, id(thing)))


async def _a_reload_reaches_every_value_that_is_kept(tmp_path: Path) -> None:
    new = changed(restarts=False)
    async with (
        started(tmp_path / "reloads", DEFAULT, new) as reloads,
        started(tmp_path / "stays", DEFAULT, DEFAULT) as stays,
        started(tmp_path / "fresh", new, new) as fresh,
        started(tmp_path / "second", new, new) as second,
    ):
        before, wanted = facts(reloads), facts(fresh)
        # Ports, paths and times differ between any two daemons.
        likewise, again = facts(stays), facts(second)
        alike = {
            way
            for way in wanted
            if wanted[way] == again.get(way, ...) and before.get(way, ...) == likewise.get(way, ...)
        }
        depend = {way for way in alike if before.get(way, ...) != wanted[way]}
        view = await reload(reloads)
        after = facts(reloads)
    keys = {name for name in SitePolicy.model_fields if not restart(name)}
    assert {change.setting for change in view.changes} == keys
    assert {
        way.split(".")[3] for way in depend if way.startswith("daemon.in_force.policy.")
    } == keys
    assert len(depend) > len(keys) + 20  # some are kept elsewhere, too
    assert {way: after.get(way) for way in depend if after.get(way) != wanted[way]} == {}


async def _what_needs_a_restart_stays_and_is_named(tmp_path: Path) -> None:
    new = changed(restarts=True)
    async with started(tmp_path / "reloads", DEFAULT, new) as reloads:
        view = await reload(reloads)
        assert reloads.in_force.policy == DEFAULT
        [note] = reloads.reloading.notes()
    names = {name for name in SitePolicy.model_fields if restart(name)}
    assert {change.setting for change in view.changes if change.restart} == names
    assert all(name in note for name in names)


def test_a_reload_reaches_every_value_that_is_kept(tmp_path: Path) -> None:
    asyncio.run(_a_reload_reaches_every_value_that_is_kept(tmp_path))


def test_what_needs_a_restart_stays_and_is_named(tmp_path: Path) -> None:
    asyncio.run(_what_needs_a_restart_stays_and_is_named(tmp_path))
