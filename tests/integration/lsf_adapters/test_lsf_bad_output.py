"""LSF's commands print something bad: the observation is unknown or the same, never wrong.

The answers of the stand-in are recorded once and then spoiled in every way, one command at a time,
so that thousands of spoiled looks cost a second. Some are spoiled by the stand-in itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bftrainer.batch import process
from bftrainer.model.cluster import Job, Node, NodeState, Presence, Snapshot
from bftrainer.model.errors import BatchSystemError
from lsf_adapters.adapter import LsfBatchSystem
from lsf_adapters.testcluster import LsfTestCluster
from lsf_adapters.testcluster.faults import SPOILS, as_spoiled
from lsf_adapters.testcluster.request import Answer
from tests.conformance.words import launch_and_wait, pilot
from tests.integration.lsf_fixtures import DIALECTS, PARAMETERS, LsfDriver, lsf_adapter, running_lsf
from tests.support.waiting import wait_for

QUERIES = (
    *("lsid", "bparams", "bqueues", "lshosts", "lsload", "bhosts", "bjobs", "bslots", "brsvs"),
)
BROKEN = sorted(SPOILS - {"chatter"})


class Recorder:
    """Answers each command as the stand-in did when it was first asked."""

    def __init__(self) -> None:
        self.spoiled: dict[str, str] = {}  # command -> how
        self.cut_to: dict[str, int] = {}  # command -> characters
        self._answers: dict[tuple[str, ...], process.Completed] = {}
        self.orders: list[Sequence[str]] = []

    def of(self, system: LsfBatchSystem, monkeypatch: pytest.MonkeyPatch) -> LsfBatchSystem:
        """Have an adapter use it."""
        original = system.commands.run

        def run(
            argv: Sequence[str], environment: Mapping[str, str], *, stdin: str = ""
        ) -> process.Completed:
            if argv[0] not in QUERIES:
                self.orders.append(argv)
            if (key := tuple(argv)) not in self._answers:
                self._answers[key] = original(argv, environment, stdin=stdin)
            return self._spoil(argv[0], self._answers[key])

        monkeypatch.setattr(system.commands, "run", run)
        return system

    @property
    def commands(self) -> set[str]:
        """Those that were run."""
        return {argv[0] for argv in self._answers}

    def printed(self, command: str) -> int:
        """The length of its longest answer."""
        return max(len(done.stdout) for key, done in self._answers.items() if key[0] == command)

    def _spoil(self, command: str, done: process.Completed) -> process.Completed:
        if command in self.cut_to:
            return replace(done, stdout=done.stdout[: self.cut_to[command]])
        if command not in self.spoiled:
            return done
        answer = as_spoiled(
            Answer(status=done.returncode, out=done.stdout, err=done.stderr), self.spoiled[command]
        )
        out = answer.out.encode(errors="surrogateescape").decode(errors="replace")
        return replace(done, returncode=answer.status, stdout=out, stderr=answer.err)


class Scene:
    """A cluster on which something of everything happens, and what is seen of it."""

    def __init__(self, cluster: LsfTestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        driver = LsfDriver(cluster)
        first = lsf_adapter(cluster)
        self.pilot = launch_and_wait(first, pilot(driver, "n1"))
        # One whose end nobody knows, and one that waits for all: slots are reserved for it.
        done = cluster.command("bsub", "-m", "n2", "-n", "4", "-o", "/dev/null", "sleep 600")
        assert done.is_ok, done.stderr
        cluster.submit(n_nodes=3, duration_s=1, limit_s=60)
        wait_for(
            lambda: {NodeState.PLANNED} <= {n.state for n in first.snapshot().nodes or ()},
            what="reserved slots",
        )
        monkeypatch.setattr("lsf_adapters.snapshot.CONFIG_INTERVAL_S", 0.0)
        self.recorder = Recorder()
        self.monkeypatch = monkeypatch
        self.system = self.fresh()
        self.truth = self.look()
        assert self.truth.is_complete
        self.pilot_seen = self.system.pilot_states([self.pilot])[self.pilot]
        assert self.pilot_seen.phase == "running"

    def fresh(self) -> LsfBatchSystem:
        """An adapter that has seen nothing yet."""
        return self.recorder.of(lsf_adapter(self.cluster), self.monkeypatch)

    def look(self) -> Snapshot:
        return self.system.snapshot()

    def check(self, seen: Snapshot) -> None:
        """Each part is as it was, or unknown."""
        if seen.nodes is not None and self.truth.nodes is not None:
            pairs = zip(seen.nodes, self.truth.nodes, strict=True)
            assert all(
                same_node(one, other, is_whole=seen.is_complete) or one.state is NodeState.UNKNOWN
                for one, other in pairs
            ), seen.nodes
        if seen.jobs is not None and self.truth.jobs is not None:
            assert [of_job(job) for job in seen.jobs] == [of_job(job) for job in self.truth.jobs]
        if seen.reservations is not None:
            assert seen.reservations == self.truth.reservations
        if seen.is_complete:
            assert seen.partitions == self.truth.partitions
            assert self.system.cycle_s == 1.0
        else:
            assert seen.failures
        observed = self.system.pilot_states([self.pilot])[self.pilot]
        assert observed.presence in {Presence.PRESENT, Presence.UNKNOWN}
        if observed.presence is Presence.PRESENT:
            assert (observed.phase, observed.node) == ("running", "n1")


def same_node(one: Node, other: Node, *, is_whole: bool) -> bool:
    if not is_whole:  # before the first answer its type is not known
        one = replace(
            one, node_type=other.node_type, gpus=other.gpus, memory_mb=other.memory_mb,
            features=other.features, partitions=other.partitions, left=other.left,
            why_whole=other.why_whole,
        )  # fmt: skip
    return replace(one, reason="") == replace(other, reason="")


def of_job(job: Job) -> dict[str, Any]:
    """Return what must not change; times depend on when it was looked."""
    return {
        name: getattr(job, name)
        for name in Job.__slots__
        if name not in {"start_s", "submit_s", "planned_nodes"}
    }


@pytest.fixture(scope="module", params=DIALECTS)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    gpus = 2 if request.param == "ibm" else 0
    with (
        pytest.MonkeyPatch.context() as patch,
        running_lsf(
            dialect=request.param, n_nodes=3, gpus_per_node=gpus, parameters=PARAMETERS
        ) as cluster,
    ):
        yield Scene(cluster, patch)


@pytest.fixture(autouse=True)
def _as_it_was(scene: Scene) -> Iterator[None]:
    """Spoil nothing after a test: all is seen as before, and nothing was ordered."""
    yield
    scene.recorder.spoiled.clear()
    scene.recorder.cut_to.clear()
    seen = scene.look()
    scene.check(seen)
    assert seen.is_complete
    assert scene.recorder.orders == []


def test_every_query_of_the_adapter_is_among_those_spoiled(scene: Scene) -> None:
    missing = set() if scene.cluster.config.is_ibm else {"bslots", "brsvs"}
    assert scene.recorder.commands == set(QUERIES) - missing


@pytest.mark.parametrize("command", QUERIES)
def test_one_command_is_spoiled(scene: Scene, command: str) -> None:
    for how in BROKEN:
        scene.recorder.spoiled[command] = how
        seen = scene.look()
        scene.check(seen)
        # At first contact nothing is known from before.
        known, scene.system = scene.system, scene.fresh()
        scene.check(scene.look())
        scene.system = known


@pytest.mark.parametrize("command", QUERIES)
def test_chatter_before_an_answer_changes_nothing(scene: Scene, command: str) -> None:
    scene.recorder.spoiled[command] = "chatter"
    for system in (scene.system, scene.fresh()):
        seen = system.snapshot()
        assert seen.is_complete, seen.failures
        scene.check(seen)


@pytest.mark.parametrize("command", QUERIES)
def test_an_answer_is_cut_off_anywhere(scene: Scene, command: str) -> None:
    """A table that ends at the end of a line is whole for whoever reads it; JSON never is."""
    if command not in scene.recorder.commands or command == "lsid":
        return
    most = scene.recorder.printed(command)
    is_json = scene.cluster.config.is_ibm and command in {"bhosts", "bjobs"}
    for length in range(0, most - 1, max(1, most // 150)):
        scene.recorder.cut_to[command] = length
        ends_a_line = any(
            done.stdout[:length].endswith("\n")
            for key, done in scene.recorder._answers.items()
            if key[0] == command
        )
        if is_json or not ends_a_line:
            scene.check(scene.look())


def test_nothing_is_claimed_when_everything_is_spoiled(scene: Scene) -> None:
    for how in BROKEN:
        scene.recorder.spoiled = dict.fromkeys(QUERIES, how)
        seen = scene.look()
        assert not seen.is_complete
        if how != "localised":
            assert seen.nodes is None
            assert seen.jobs is None


def test_spoiled_by_the_stand_in_itself(scene: Scene) -> None:
    system = lsf_adapter(scene.cluster)
    for command in ("bhosts", "bjobs"):
        for how in ("truncated", "garbage", "error"):
            scene.cluster.spoil(command, how)
            seen = system.snapshot()
            scene.check(seen)
            assert (seen.nodes if command == "bhosts" else seen.jobs) is None
        scene.cluster.spoil(command, "chatter")
        assert system.snapshot().is_complete
        scene.cluster.spoil(command, None)


def test_a_pilot_is_launched_once_whatever_bsub_prints(scene: Scene) -> None:
    driver, system = LsfDriver(scene.cluster), lsf_adapter(scene.cluster)
    for how in sorted(SPOILS - {"localised"}):
        request = pilot(driver, "n3")
        scene.cluster.spoil("bsub", how)
        job_id = system.launch_pilot(request)
        scene.cluster.spoil("bsub", None)
        names = scene.cluster.command("bjobs", "-a", "-w").stdout
        assert names.count(f" {request.pilot_id}.") == 1, how
        assert system.pilot_states([job_id])[job_id].presence is Presence.PRESENT
        system.cancel_pilots([job_id], force=True)


def test_a_cancellation_of_which_nothing_is_known_is_an_error(scene: Scene) -> None:
    system = lsf_adapter(scene.cluster)
    scene.cluster.spoil("bkill", "error")
    with pytest.raises(BatchSystemError) as caught:
        system.cancel_pilots(["999999"])
    scene.cluster.spoil("bkill", None)
    assert caught.value.code == "BFT-1207"
