"""What one user does to his own processes on the daemon's host reaches no other user."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import pytest
from starlette.applications import Starlette

from bftrainer.api.http_protocol import PEER_KEY, Credentials
from bftrainer.api.privacy import Sight
from bftrainer.api.routes import Routes
from bftrainer.api.service import Peer
from bftrainer.batch.batch_system import PilotRequest
from bftrainer.batch.local.adapter import create
from bftrainer.batch.process import Completed
from bftrainer.fleet.background import Background
from bftrainer.fleet.control_plane import ControlPlane, Listener
from bftrainer.fleet.pilots import requests as pilot_requests
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.fleet.release import PilotEnds
from bftrainer.fleet.wire.keys import generate_pair
from bftrainer.fleet.wire.messages import DaemonMessage, Hello, Welcome
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import Claim, Cooling, Release
from bftrainer.model.trainer import TrainerRecord
from bftrainer.model.views import TrainerView
from bftrainer.site.policy.model import SitePolicy
from slurm_plugins.commands import SlurmCommands
from slurm_plugins.snapshot import SnapshotReader
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.claiming import claiming_of
from tests.support.journals import journal_at
from tests.support.memory_service import MemoryService
from tests.support.snapshots import T0, record, running
from tests.support.timelines import PLAN
from tests.unit.fleet.test_pilot_refusals import ADA, BATCH, BOB

STUCK, OTHER = "eve", "alice"
P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


journal = journal_at(T0)


class Slow:
    """A batch system in which whatever is started as one user does not end."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.launched: list[str] = []
        self.cancelled: list[str] = []
        self.is_helping = threading.Event()

    def launch_pilot(self, request: PilotRequest) -> str:
        if request.user == STUCK:
            self.goes_on.wait(20)
        self.launched.append(request.user)
        self.is_helping.set()
        return request.pilot_id.lstrip("p0")

    def cancel_pilots(self, job_ids: list[str], *, force: bool = False) -> None:
        del force
        if "1" in job_ids:
            self.goes_on.wait(20)
        self.cancelled += job_ids
        self.is_helping.set()


def book_of(journal: Journal, system: Any) -> PilotBook:
    return PilotBook(journal, system, "bft", lambda: T0, as_submitter=True)


def add(book: PilotBook, pilot_id: str, user: str, job_id: str) -> None:
    claim = Claim(node=f"n{pilot_id[-1]}", time_limit_s=3600.0, for_trainer="t1")
    pilot = book.open(pilot_id, claim, f"key{pilot_id}", user)
    book.write_down([pilot.record])
    pilot.is_written = True
    book.launched(pilot, job_id)


# ---- programs ------------------------------------------------------------------------------


@in_loop
async def test_an_agent_is_told_to_run_no_interpreter_of_another_user(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {"p000001": OTHER, "p000002": STUCK, "p000003": ""}
    plane = ControlPlane(
        journal=journal,
        policy=SitePolicy(),
        pilots_dir=tmp_path / "pilots",
        incarnation=journal.begin_incarnation(),
        keys=generate_pair(),
        listener=Listener(),
        user_of=lambda pilot_id: users[pilot_id],
    )
    for user in (OTHER, STUCK):
        spec = trainer_spec(tmp_path / user, SLOW)
        plane.trainers.submit(replace(spec, user=user, interpreter=f"/home/{user}/python"))
    told: dict[str, list[str]] = {}

    def send(pilot_id: str, message: DaemonMessage) -> bool:
        if isinstance(message, Welcome):
            told[pilot_id] = sorted(map(str, message.interpreters))
        return True

    monkeypatch.setattr(plane.server, "send", send)
    right = {
        "p000001": [f"/home/{OTHER}/python"],
        "p000002": [f"/home/{STUCK}/python"],
        "p000003": [f"/home/{OTHER}/python", f"/home/{STUCK}/python"],  # of a user's own daemon
    }
    for pilot_id in users:
        hello = Hello(
            pilot_id=pilot_id,
            node="n1",
            address="127.0.0.1",
            pid=1,
            peer_endpoint="tcp://127.0.0.1:4000",
            peer_public_key="k" * 40,
        )
        plane._on_message(pilot_id, hello)  # as ``AgentServer`` calls it
    first = dict(told)
    told.clear()
    plane.send_signs_of_life()
    await plane.stop()
    assert first == told == right


# ---- what sbatch says as a user ------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        f"Slurm refused pilot p000001 for node n1: {BATCH}Invalid partition name specified",
        "Slurm refused pilot p000001 for node n1: The submit helper cannot be reached",
        "The submit helper does nothing for user ada: '--account=a:b' is not allowed (BFT-1527).",
    ],
)
def test_what_a_user_can_cause_stops_the_pilots_of_nobody_else(words: str) -> None:
    refusals = PilotRefusals(as_submitter=True)
    refusals.refused(words, ADA)
    assert refusals.why_of(ADA) != ""
    assert (refusals.why, refusals.why_of(BOB)) == ("", "")
    assert refusals.may_claim([BOB])
    refusals.refused("The submit helper cannot be reached at '/run/s': gone.", ADA)
    assert not refusals.may_claim([BOB])  # this is the helper's own trouble


def test_a_job_id_of_another_users_pilot_renames_and_cancels_nothing(journal: Journal) -> None:
    commands, asked = SlurmCommands(), list[tuple[str, ...]]()

    def query(argv: Any) -> Completed:
        asked.append(tuple(argv))
        return Completed(
            argv=tuple(argv), returncode=0, stdout="", stderr="", wall_s=0.0, timed_out=False
        )

    commands.query = query  # type: ignore[method-assign]
    reader = SnapshotReader(
        commands=commands,
        user="bft",
        pilot_partition="bf",
        partition=None,
        reservations_interval_s=60.0,
        is_of_all=True,
    )
    reader.remember("71", "p000001", OTHER)
    reader.remember("71", "p000002", STUCK)
    job = replace(running("71", "n1"), user=OTHER, partitions=("bf",))
    (marked,) = reader._mark_pilots((job,)) or ()
    assert (marked.pilot_id, asked) == ("p000001", [])

    book = book_of(journal, create({"socket": Path("/none")}))
    add(book, "p000001", OTHER, "71")
    assert book.job_ids(["p000001"]) == ["71"]
    add(book, "p000002", STUCK, "71")
    assert book.job_ids(["p000002"]) == []
    assert book.release([Release(pilot_id="p000002", node="n2", reason="cancelled")]) == []
    assert book.overdue() == []


# ---- what does not end ---------------------------------------------------------------------


@in_loop
async def test_pilots_are_cancelled_while_another_users_scancel_hangs(journal: Journal) -> None:
    system = Slow()
    book = book_of(journal, system)
    add(book, "p000001", STUCK, "1")
    add(book, "p000002", STUCK, "2")
    add(book, "p000003", OTHER, "3")
    no_agents: Any = None
    ends = PilotEnds(book, no_agents, Background(), lambda: None)
    try:
        ends.cancel(["1"])
        ends.cancel(["2"])
        ends.cancel(["3"], force=True)
        assert await asyncio.to_thread(system.is_helping.wait, 10)
        assert system.cancelled == ["3"]
    finally:
        system.goes_on.set()
        await asyncio.to_thread(ends.close)
    assert sorted(system.cancelled) == ["1", "2", "3"]  # what waited, too


@in_loop
async def test_pilots_are_submitted_while_another_users_sbatch_hangs(
    tmp_path: Path, journal: Journal
) -> None:
    system = Slow()
    book = book_of(journal, system)
    claiming = claiming_of(book, tmp_path / "pilots")
    count = pilot_requests.MOST_AT_ONCE + 1
    names = [f"n{n}" for n in range(count + 1)]
    trainers = {"t1": of(STUCK), "t2": of(OTHER)}
    owners = [*["t1"] * count, "t2"]
    claims = [
        Claim(node=n, time_limit_s=60.0, for_trainer=t) for n, t in zip(names, owners, strict=True)
    ]
    plan = replace(PLAN, claims=tuple(claims))
    wanted = claiming.open(plan, [f"p{n:06}" for n in range(1, count + 2)], trainers)
    asking = asyncio.create_task(claiming.ask(wanted))
    try:
        assert await asyncio.to_thread(system.is_helping.wait, 10)
        assert system.launched == [OTHER]
    finally:
        system.goes_on.set()
        await asking
        claiming.close()
    assert len(system.launched) == count + 1


def of(user: str) -> TrainerRecord:
    made = record("t1")
    return replace(made, spec=replace(made.spec, user=user))


# ---- what is shown -------------------------------------------------------------------------


def test_why_a_script_failed_on_a_node_is_for_its_user() -> None:
    cooling = Cooling(until_s=60.0, failures=3, trainer_id="t1", cause="/home/ada/x (a) failed.")
    said = cooling.sentence(0.0)
    views = [
        TrainerView(record=one, planned_nodes=(), requested_nodes=(), observed_nodes=())
        for one in (ADA, BOB)
    ]
    for visibility in (False, True):
        for user, is_whole in (("ada", True), ("bob", False)):
            peer = Peer(uid=54321, user=user, pid=1)
            shown = Sight.of(peer, views, is_own=visibility).text(said)
            assert ("/home/ada" in shown) is is_whole
            assert shown.startswith("It cools down for 60 s more: 3 failures")


@in_loop
async def test_large_requests_of_one_user_are_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = Routes(MemoryService(tmp_path))
    waiting = most = 0

    async def beside(work: Callable[[], Any]) -> Any:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        for _ in range(20):  # turns of the event loop, so that the others could come
            await asyncio.sleep(0)
        waiting -= 1
        return work()

    monkeypatch.setattr(routes, "_beside", beside)
    app = routes.app()
    requests = [("PATCH", "/v1/trainers/t1"), ("POST", "/v1/drain"), ("POST", "/v1/shutdown")]
    await asyncio.gather(*[_ask(app, method, path) for method, path in 5 * requests])
    routes.close()
    assert most == 1


async def _ask(app: Starlette, method: str, path: str) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(_: Any) -> None:
        return

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
        PEER_KEY: Credentials(uid=54321, pid=1),
    }
    await app(scope, receive, send)
