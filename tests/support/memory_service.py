"""A small daemon without a cluster: keeps trainers in memory and serves the real API.

For tests of the socket protocol and the command line; nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bftrainer.api.admission import check_spec
from bftrainer.api.server import ApiServer
from bftrainer.api.service import Peer
from bftrainer.daemon.account_report import make_report as account_report
from bftrainer.daemon.accounts import Sums
from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.ledger import HarmRecords, Rule
from bftrainer.daemon.harm.report import make_report
from bftrainer.daemon.uses import UsesOfNodes
from bftrainer.fleet.trainers import record_updates
from bftrainer.model.decision import DecisionInput, Plan, Term
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.reports import AccountReport, Asked, HarmReport
from bftrainer.model.site import NOTHING
from bftrainer.model.study import Seen, StudyCount, StudyView, TrialView
from bftrainer.model.timeline import TimelineView
from bftrainer.model.trainer import (
    TrainerChange,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
    withheld,
)
from bftrainer.model.views import (
    DrainView,
    Explanation,
    LogFile,
    NodeGpus,
    NodeView,
    ReloadView,
    SizeSpeed,
    StatusView,
    TrainerView,
)
from bftrainer.site.policy.keys import Visibility
from bftrainer.site.policy.model import SitePolicy
from tests.support.snapshots import T0


class NoTrials:
    """Implements ``TrialService`` of a daemon without studies."""

    def studies(self, user: str) -> tuple[StudyCount, ...]:  # noqa: ARG002
        return ()

    def study(self, user: str, study: str, seen: Seen | None = None) -> StudyView:  # noqa: ARG002
        return StudyView(study=study, change=0, incarnation=3, pool_nodes=0, trials=())

    async def news(self, user: str, study: str, seen: Seen, limit_s: float) -> None:
        """Nothing changes."""

    def unknown(self, specs: Sequence[TrainerSpec]) -> tuple[TrainerSpec, ...]:  # noqa: ARG002
        return ()

    def submit(self, specs: Sequence[TrainerSpec], peer: Peer) -> tuple[TrialView, ...]:  # noqa: ARG002
        return ()


class MemoryService:
    """Implements ``Service``; tests reach into its fields to make things happen."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.incarnation = 3
        self.records: dict[str, TrainerRecord] = {}
        self.terms: tuple[Term, ...] = ()
        self.speeds: tuple[SizeSpeed, ...] = ()
        self.log_files: dict[str, list[LogFile]] = {}
        self.peers: list[Peer] = []
        self.harm_records: list[HarmRecords] = []
        self.account_sums: Sums = {}
        self.back_off = self.draining = ""
        self.is_ending = False
        self.slow_nodes: tuple[str, ...] = ()
        self.failures: tuple[str, ...] = ("squeue did not answer.",)
        self.late_agents: tuple[str, ...] = ()
        self.measured = NOTHING
        self.policy_files: tuple[str, ...] = ()
        self.batch_pairs: tuple[str, ...] = ()
        self.broken = False
        self.killed: list[str] = []  # cancelled without a checkpoint
        self.requeued: list[str] = []
        self.asked = 0
        self.trials = NoTrials()
        self.uses = UsesOfNodes(lambda: "UTC")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stopped = threading.Event()

    def status(self) -> StatusView:
        if self.broken:
            raise RuntimeError("the secret inside of a defect")
        return StatusView(
            incarnation=self.incarnation,
            pid=os.getpid(),
            started_s=time.time() - 3700,
            batch_system="local",
            observed="unknown",
            failures=self.failures,
            policy_hash="abcdef0123456789",
            nodes_total=4,
            nodes_idle=1,
            nodes_held=2,
            nodes_requested=1,
            decisions=7,
            last_decision_ms=0.24,
            last_decision_s=time.time() - 5,
            rescales=2,
            give_backs=1,
            preemptions=0,
            trainers=self.trainers(),
            back_off=self.back_off,
            draining=self.draining,
            slow_nodes=self.slow_nodes,
            late_agents=self.late_agents,
            measured=self.measured,
            policy_files=self.policy_files,
            batch_pairs=self.batch_pairs,
        )

    def nodes(self) -> tuple[NodeView, ...]:
        return (
            NodeView(name="n1", state="idle", use="free", gpus=2),
            NodeView(
                name="n2",
                state="allocated",
                use="held",
                reason="[red]a pilot\x1b[2J is on it",
                trainer_id="t1",
                pilot_id="p000001",
                usable_until_s=time.time() + 7300,
            ),
        )

    def timeline(self, seen: Seen | None) -> TimelineView:
        self.uses.incarnation = self.incarnation
        return self.uses.timeline(seen)

    async def news(self, seen: Seen, limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        await self.uses.news(seen, limit_s)

    def saw(self, given: DecisionInput, plan: Plan) -> None:
        """Take what a decision saw, in any thread."""
        if self._loop is None or self._loop.is_closed():
            self.uses.saw(given, plan)
        else:
            self._loop.call_soon_threadsafe(self.uses.saw, given, plan)

    def wake(self) -> None:
        """Tell those who wait for something new that there is, in any thread."""
        self.asked += 1
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.uses.look, self.asked)

    def wake_with_records(self, now_s: float) -> None:
        """As ``wake``, with the trainers as they are; before anybody waits."""
        self.asked += 1
        self.uses.look(self.asked, now_s, self.records.values())

    def trainers(self) -> tuple[TrainerView, ...]:
        return tuple(self._view(record) for record in self.records.values())

    def trainer(self, trainer_id: str) -> TrainerView:
        self.asked += 1
        if trainer_id not in self.records:
            raise BftError(
                "BFT-1004",
                f"There is no trainer {trainer_id}.",
                "Look for its id in 'bftrainer status'.",
                exit_code=ExitCode.NOT_FOUND,
            )
        return self._view(self.records[trainer_id])

    def explain(self, trainer_id: str) -> Callable[[], Explanation]:
        view = self.trainer(trainer_id)
        return lambda: Explanation(
            trainer_id=trainer_id,
            state=str(view.record.state),
            planned_size=2,
            observed_size=1,
            sentences=("Two nodes are idle.", "A third would gain less than it costs."),
            decision_id=7,
            node_price=12.5,
            gain_of_one_more=None,
            loss_of_one_fewer=3.25,
            policy="las" if self.terms else "milp",
            terms=self.terms,
            speeds=self.speeds,
            t_fwd_s=120.0,
        )

    def logs(self, trainer_id: str) -> tuple[LogFile, ...]:
        self.trainer(trainer_id)
        return tuple(self.log_files.get(trainer_id, ()))

    def harm(self, since_s: float | None) -> HarmReport:
        begin_s = 0.0 if since_s is None else since_s
        return make_report(self.harm_records, BackOff(), Rule(), since_s=begin_s, until_s=T0)

    def account(self, asked: Asked) -> Callable[[], AccountReport]:
        sums = tuple(self.account_sums.items())
        policy = SitePolicy(time_zone="UTC", watts_per_node_type={"default": 500.0})
        return partial(account_report, sums, asked, policy, since_s=T0, until_s=T0 + 86_400.0)

    def metrics(self) -> str:
        if self.broken:
            raise RuntimeError("the secret inside of a defect")
        return "# TYPE bftrainer_nodes_held gauge\nbftrainer_nodes_held 2.0\n"

    def submit(self, spec: TrainerSpec, peer: Peer) -> TrainerView:
        if spec.user != peer.user:
            raise _not_permitted(f"You are {peer.user}, not {spec.user}.")
        self.peers.append(peer)
        trainer_id = f"t{len(self.records) + 1}"
        self.records[trainer_id] = TrainerRecord(
            trainer_id=trainer_id,
            spec=spec,
            state=TrainerState.QUEUED,
            submitted_s=time.time(),
            progress=TrainerProgress(step=11, samples_per_s=123.4),
            held_s=time.time() if spec.hold else None,
            waits_for=record_updates.unmet(spec, self.records),
        )
        return self.trainer(trainer_id)

    def cancel(self, trainer_id: str, peer: Peer, *, now: bool = False) -> TrainerView:
        self._owned(trainer_id, peer)
        self.killed += [trainer_id] if now else []
        self.set_state(trainer_id, TrainerState.CANCELLED)
        return self.trainer(trainer_id)

    def change(self, trainer_id: str, change: TrainerChange, peer: Peer) -> TrainerView:
        record = self._owned(trainer_id, peer)
        check_spec(change.applied(record.spec))
        self.records[trainer_id] = record_updates.changed(record, change, time.time())
        return self.trainer(trainer_id)

    def requeue(self, trainer_id: str, peer: Peer) -> TrainerView:
        record = self._owned(trainer_id, peer)
        if record.state.is_final:
            return self.submit(record_updates.again(record), peer)
        self.requeued.append(trainer_id)
        return self.trainer(trainer_id)

    def _owned(self, trainer_id: str, peer: Peer) -> TrainerRecord:
        record = self.trainer(trainer_id).record
        if record.spec.user != peer.user:
            raise _not_permitted(f"Trainer {trainer_id} belongs to {record.spec.user}.")
        return record

    def flush(self) -> None:
        """Nothing is on disk."""

    async def reload(self, peer: Peer) -> ReloadView:
        self.peers.append(peer)
        return ReloadView(policy_hash="0" * 64, changes=())

    def drain(self, peer: Peer, limit_s: float) -> DrainView:
        self.peers.append(peer)
        self.draining = f"{peer.user} gives all nodes back."
        return DrainView(nodes=(), deadline_s=T0 + limit_s)

    def resume(self, peer: Peer) -> bool:
        self.peers.append(peer)
        self.draining = ""
        return not self.is_ending

    def shutdown(self, peer: Peer, release: str = "") -> None:
        self.peers.append(peer)
        self.released = release
        self.stopped.set()

    def set_state(self, trainer_id: str, state: TrainerState, reason: str = "") -> None:
        self.records[trainer_id] = dataclasses.replace(
            self.records[trainer_id], state=state, reason=reason
        )

    def add_log(self, trainer_id: str, name: str, text: str, **more: int | None) -> Path:
        path = self.log_dir / name
        path.write_text(text)
        item = LogFile(
            worker_id=name,
            node="n1",
            path=str(path),
            generation=more.get("generation") or 0,
            rank=more.get("rank"),
        )
        self.log_files.setdefault(trainer_id, []).append(item)
        return path

    def _view(self, record: TrainerRecord) -> TrainerView:
        return TrainerView(
            record=record,
            planned_nodes=("n1", "n2"),
            requested_nodes=("n2",),
            observed_nodes=("n1",),
            gpus=(NodeGpus(node="n1", use=use),) if (use := record.progress.gpu_use) else (),
            waits=withheld(self.records, time.time()).get(record.trainer_id, ""),
        )


def _not_permitted(cause: str) -> BftError:
    return BftError("BFT-1005", cause, "Ask its owner.", exit_code=ExitCode.NOT_PERMITTED)


@contextmanager
def serving(
    service: MemoryService, socket_path: Path, visibility: Visibility = Visibility.ALL
) -> Iterator[ApiServer]:
    """Serve in a loop of its own, in a thread of its own."""
    loop = asyncio.new_event_loop()
    server = ApiServer(service, socket_path, visibility=lambda: visibility)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(timeout=30)
        yield server
    finally:
        try:
            asyncio.run_coroutine_threadsafe(_end(service, server), loop).result(timeout=30)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=30)
            loop.close()


async def _end(service: MemoryService, server: ApiServer) -> None:
    """End as a daemon does: who waits is answered, and no task is left."""
    service.uses.close()
    await server.stop()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def prepare_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working directory with a script, and a state directory with a short path."""
    state = tmp_path / "s"
    state.mkdir(mode=0o700)
    (tmp_path / "train.py").write_text("print('training')\n")
    # A torch that imports fast: the check runs a real interpreter, not a real torch.
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text("__version__ = '9.9'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BFTRAINER_STATE_DIR", str(state))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    for name in ("BFTRAINER_SOCKET", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def socket_of() -> Path:
    """Return the socket that the environment names."""
    return Path(os.environ["BFTRAINER_STATE_DIR"]) / "daemon.sock"


def error_code(output: pytest.CaptureFixture[str]) -> str:
    """Return the code that was printed, in the form every error has."""
    captured = output.readouterr()
    assert "Traceback" not in captured.err
    first, second = captured.err.splitlines()[:2]
    assert first.startswith("error BFT-")
    assert second.startswith("next: ")
    return first.removeprefix("error ").split(":")[0]
