"""A site on this machine whose trainers are waited for: local batch system, daemon, agents.

Called by the tests of the daemon and by those that every runtime must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import pytest

from bftrainer.batch.local.client import LocalClient, LocalServer, start_server
from bftrainer.batch.local.cluster import NODE_VARIABLE
from bftrainer.fleet.generations.members import Rescaled
from bftrainer.lab.demo.local_site import LocalSite
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.canonical import from_plain
from bftrainer.model.trainer import TrainerState
from bftrainer.model.views import TrainerView
from tests.support.waiting import wait_for

WARM = ("--warm",)
Scope = Literal["function", "module"]


def start_warm_server(directory: Path, **settings: Any) -> LocalServer:
    """Start a batch system of which one import of torch is enough for all nodes."""
    server = start_server(directory, more_options=WARM, **settings)
    server.await_warm()
    return server


class Site(LocalSite):
    """What trainers do there, as users see it."""

    def __init__(self, base: Path, server: LocalServer, sidecar: DaemonProcess) -> None:
        super().__init__(base, server, sidecar)
        server.client = LocalClient(server.socket_path, timeout_s=60.0)  # the daemon's has 2 s

    @classmethod
    @contextmanager
    def open(cls, base: Path, *, options: Sequence[str] = WARM, **settings: Any) -> Iterator[Self]:
        """Start both (``LocalSite.open``); one import of torch is enough for all nodes."""
        opened = super().open(base, options=options, **settings)
        with opened as site:
            if WARM[0] in options:
                site.server.await_warm()
            yield site

    @classmethod
    @contextmanager
    def on(
        cls, server: LocalServer, base: Path, policy: str, make: Callable[..., DaemonProcess]
    ) -> Iterator[Self]:
        """Start a daemon on a server that runs already."""
        sidecar = make(
            base / "state",
            batch_system="local",
            batch_options={"socket": str(server.socket_path)},
            policy=policy,
        )
        with sidecar:
            yield cls(base, server, sidecar)

    def view(self, trainer_id: str) -> TrainerView:
        return self.client.trainer(trainer_id)

    def observed(self, trainer_id: str, *sizes: int) -> TrainerView:
        def reached() -> TrainerView | None:
            view = self.view(trainer_id)
            return view if len(view.observed_nodes) in sizes else None

        try:
            return wait_for(reached, what=f"{trainer_id} has one of the sizes {sizes}")
        except AssertionError as problem:
            reasons = " ".join(self.client.explain(trainer_id).sentences)
            raise AssertionError(f"{problem}; the daemon explains: {reasons}") from problem

    def trains_at(self, trainer_id: str, *sizes: int) -> None:
        """Wait for a complete generation; members that are stopping are observed, too."""
        wait_for(
            lambda: self.view(trainer_id).record.progress.size in sizes,
            what=f"{trainer_id} trains at one of the sizes {sizes}",
        )

    def in_state(self, trainer_id: str, state: TrainerState) -> TrainerView:
        def reached() -> TrainerView | None:
            view = self.view(trainer_id)
            return view if view.record.state is state else None

        return wait_for(reached, what=f"{trainer_id} is {state.value}")

    def was_parked(self, trainer_id: str) -> None:
        """Wait until it was; a short job is over soon, and then it trains again."""
        wait_for(
            lambda: any(
                e.payload["trainer_id"] == trainer_id for e in self.sidecar.entries("parked")
            ),
            what=f"{trainer_id} was parked",
        )

    def trains_on(self, trainer_id: str) -> None:
        before = self.view(trainer_id).record.progress.samples
        wait_for(
            lambda: self.view(trainer_id).record.progress.samples > before, what="more samples"
        )

    def rescales(self, trainer_id: str) -> list[Rescaled]:
        found = [entry.payload for entry in self.sidecar.entries("rescaled")]
        return [from_plain(e["what"], Rescaled) for e in found if e["trainer_id"] == trainer_id]

    def pids_on(self, node: str) -> list[int]:
        """Return the processes of a node."""
        mark = f"{NODE_VARIABLE}={node}".encode()
        every = (path for path in Path("/proc").iterdir() if path.name.isdecimal())
        return [int(path.name) for path in every if mark in environment(path)]

    def log_text(self, trainer_id: str) -> str:
        return "".join(Path(f.path).read_text() for f in self.client.logs(trainer_id))


def environment(path: Path) -> list[bytes]:
    """Return the variables of a process in /proc; []: it has ended."""
    try:
        return (path / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def opened_site(kind: type[Site] = Site, *, scope: Scope = "module", **settings: Any) -> Any:
    """Return a fixture: a site; ``settings`` are those of its ``open``."""

    @pytest.fixture(scope=scope)
    def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
        with kind.open(tmp_path_factory.mktemp("site"), **settings) as opened:
            yield opened

    return site
