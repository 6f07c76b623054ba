"""The daemon on the local batch system: one real process, real agents, real workers."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.daemon.journal_page import JournalSource
from bftrainer.daemon.journal_replay import KIND, take_again
from bftrainer.daemon.metrics import MEANINGS
from bftrainer.ground.fence import path_for
from bftrainer.model.decision import DecisionRecord
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.timeline import USES, NodeUse, TimelineView
from bftrainer.model.trainer import TrainerState
from milp.problem import Curve
from tests.integration.daemon_scripts import BROKEN, LIGHT, SLOW, trainer_spec
from tests.support import monitoring
from tests.support.processes import is_running
from tests.support.repeating import repeated_equal
from tests.support.site import Site, opened_site
from tests.support.timelines import uses_now
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 1
join_window_s: 0.5
agent_timeout_s: 4
hold_idle_s: 20
failure_budget: 2
metrics_by_user: true
"""
CURVE = Curve(sizes=(1, 2, 4), samples_per_s=(100.0, 190.0, 350.0))


class DaemonSite(Site):
    """Every test of a module submits into a folder of its own."""

    prefix = ""

    def submit(self, name: str, text: str, **changes: object) -> str:
        directory = self.base / self.prefix / name
        fields: dict[str, object] = {
            "name": name,
            "checkpoint_interval_s": 1.0,
            "curve": CURVE,
            "environment": (("OMP_NUM_THREADS", "1"),),
        }
        spec = trainer_spec(directory, text, **{**fields, **changes})
        return self.client.submit(spec).record.trainer_id

    def steps(self, trainer_id: str) -> int:
        return self.view(trainer_id).record.progress.step


# One site for all tests here: agents stay warm between them (hold_idle_s).
shared_site = opened_site(DaemonSite, n_nodes=3, policy=POLICY)


def test_a_killed_daemon_disturbs_no_trainer_and_its_heir_adopts_them(site: DaemonSite) -> None:
    trainer = site.submit("slow", SLOW)
    site.observed(trainer, 2)
    pids = _worker_pids(site, trainer)
    old = site.client.trainer(trainer).record
    status = site.client.status()
    before = status.incarnation
    assert status.measured.t_fwd_s == 120.0  # the default, which POLICY leaves
    site.sidecar.kill()
    assert site.sidecar.start().incarnation == before + 1
    site.observed(trainer, 2)
    site.trains_on(trainer)
    assert _worker_pids(site, trainer) == pids
    new = site.client.trainer(trainer).record
    assert new.progress.generation == old.progress.generation
    assert new.rescales == old.rescales  # one already, where its two nodes came one by one


def test_a_worker_killed_while_the_daemon_is_away_is_replaced(site: DaemonSite) -> None:
    trainer = site.submit("slow", SLOW)
    site.observed(trainer, 2)
    pids = _worker_pids(site, trainer)
    site.sidecar.kill()
    os.kill(pids[-1], signal.SIGKILL)
    site.sidecar.start()
    site.observed(trainer, 2)
    site.trains_on(trainer)
    assert pids[0] in _worker_pids(site, trainer)


def test_a_controller_that_is_down_changes_nothing(site: DaemonSite) -> None:
    trainer = site.submit("slow", SLOW)
    before = site.observed(trainer, 2)
    site.server.client.pause()
    status = wait_for(
        lambda: s if (s := site.client.status()).observed == "unknown" else None,
        what="observation is unknown",
    )
    assert status.failures
    site.trains_on(trainer)
    after = site.client.trainer(trainer)
    assert set(after.observed_nodes) == set(before.observed_nodes)
    assert "did not answer" in site.client.explain(trainer).sentences[0]
    site.server.client.resume()
    wait_for(lambda: site.client.status().observed == "present", what="observation is back")
    assert set(site.client.trainer(trainer).observed_nodes) == set(before.observed_nodes)


@pytest.mark.parametrize("runtime", ["torch", "mpi"])
@pytest.mark.long
def test_a_checkpoint_that_was_damaged_is_told_by_status_and_explain(
    site: DaemonSite, runtime: str
) -> None:
    directory = site.base / site.prefix / "checkpoints"
    directory.mkdir(parents=True)
    damaged = path_for(directory, 60, 1)
    damaged.write_bytes(b"")
    text, more = (SLOW, {}) if runtime == "torch" else (LIGHT, {"epochs": None})
    where = str(directory)
    trainer = site.submit("slow", text, runtime=runtime, checkpoint_dir=where, **more)
    site.trains_on(trainer)
    told = f"BFT-1413: Not used of {directory}: {damaged.name} (it does not start like a checkpoint"
    assert site.view(trainer).trouble.startswith(told)
    explained = site.client.explain(trainer).sentences
    assert [one for one in explained if one.startswith(told) and one.endswith("began anew.")]
    assert damaged.with_name(f"{damaged.name}.damaged").exists()


def test_ordinary_jobs_get_their_nodes_and_the_trainer_resumes(site: DaemonSite) -> None:
    trainer = site.submit("slow", SLOW)
    site.observed(trainer, 2)
    wait_for(lambda: site.steps(trainer) > 60, what="a checkpoint's worth of steps")
    job = site.server.client.submit(n_nodes=3, limit_s=60, duration_s=2, user="alice")
    site.was_parked(trainer)
    site.observed(trainer, 2)
    # Its second node may come a moment after the first: then it resumed one rescale earlier.
    wait_for(
        lambda: any(e.payload["what"]["resumed_from"] for e in site.sidecar.entries("rescaled")),
        what="it resumed",
    )
    [record] = [h for h in site.server.client.history() if h["job_id"] == job]
    assert record["start_s"] - record["submit_s"] < 60  # the trainer never ends by itself
    text, user = site.client.metrics(), site.view(trainer).record.spec.user
    assert "bftrainer_nodes_training 2.0" in text
    assert f'bftrainer_user_nodes_training{{account="",username="{user}"}} 2.0' in text
    assert f'bftrainer_user_trainers{{account="",state="running",username="{user}"}} 1.0' in text


def test_a_vanished_node_costs_one_member(site: DaemonSite) -> None:
    trainer = site.submit("slow", SLOW)
    view = site.observed(trainer, 2)
    lost = view.observed_nodes[0]
    site.server.client.set_node(lost, is_up=False)
    wait_for(
        lambda: lost not in site.client.trainer(trainer).observed_nodes, what="the node is left"
    )
    site.trains_on(trainer)
    wait_for(lambda: _state_of(site, lost) == "down", what="the next look shows it")


def test_cancel_ends_the_workers_and_frees_the_nodes(site: DaemonSite) -> None:
    trainer = site.submit("slow", SLOW)
    site.observed(trainer, 2)
    pids = _worker_pids(site, trainer)
    site.client.cancel(trainer)
    site.in_state(trainer, TrainerState.CANCELLED)
    wait_for(lambda: not any(is_running(p) for p in pids), what="workers are gone")
    wait_for(
        lambda: all(n.trainer_id == "" for n in site.client.nodes()), what="the nodes are free"
    )


def test_the_timeline_tells_what_is_new_and_the_journal_the_same(site: DaemonSite) -> None:
    seen = site.client.timeline()
    trainer = site.submit("slow", SLOW)
    site.observed(trainer, 2)
    told: list[tuple[str, str]] = []

    def trains_on() -> set[str]:
        nonlocal seen
        seen = site.client.timeline(seen.seen)
        told.extend((USES[use], seen.nodes[node]) for _, node, use, who in seen.changes if who)
        return {node for use, node in told if use is NodeUse.TRAINING}

    wait_for(lambda: len(trains_on()) >= 2, what="two nodes train")
    assert (NodeUse.STARTING, min(trains_on())) in told

    def replayed() -> JournalSource | None:  # what is journalled may wait for the disk
        page = JournalSource(site.sidecar.state_dir / "journal.db")
        drawn, live = page.timeline(None), site.client.timeline()
        is_same = _history(drawn, live.since_s) == _history(live, live.since_s)
        return page if is_same and uses_now(drawn) == uses_now(live) else None

    page = wait_for(replayed, what="the journal tells the same")
    assert trainer in {view.record.trainer_id for view in page.status().trainers}
    assert page.explain(trainer)["sentences"]
    live = site.client.status()
    assert page.status().give_backs >= live.give_backs  # those of the daemons before, too


def _history(view: TimelineView, since_s: float) -> list[tuple[float, str, str, str]]:
    """Return every change after a time, by name."""
    return [
        (at_s, view.nodes[node], USES[use], who)
        for at_s, node, use, who in view.changes
        if at_s > since_s
    ]


def test_a_daemon_that_ends_answers_who_waits(site: DaemonSite) -> None:
    wait_for(lambda: not any(n.trainer_id for n in site.client.nodes()), what="nothing happens")
    before = site.client.timeline()
    with ThreadPoolExecutor(4) as readers:
        asked = [readers.submit(site.client.timeline, before.seen) for _ in range(4)]
        site.client.status()  # those before it are under way, but for what threads do
        site.sidecar.stop()
        for one in asked:
            assert not isinstance(one.exception(), TimeoutError)
    assert "Traceback" not in site.sidecar.out.read_text()
    site.sidecar.start()
    assert site.client.timeline().since_s == before.since_s, "the next one goes on with its history"


def test_a_script_that_raises_fails_its_trainer_with_the_reason(site: DaemonSite) -> None:
    trainer = site.submit("broken", BROKEN, n_max=1)
    view = site.in_state(trainer, TrainerState.FAILED)
    assert "the data set is not there" in view.record.reason
    assert "log" in view.record.reason
    logs = [Path(f.path).read_text() for f in site.client.logs(trainer)]
    assert any("RuntimeError: the data set is not there" in text for text in logs)
    assert any(s.startswith("It is failed") for s in site.client.explain(trainer).sentences)


def test_every_journalled_decision_and_rescale_can_be_taken_again(site: DaemonSite) -> None:
    trainer = site.submit("slow", SLOW)
    site.observed(trainer, 2)
    known = site.sidecar.entries()[-1].seq
    site.server.client.submit(n_nodes=2, limit_s=60, duration_s=1, user="alice")
    wait_for(
        lambda: any(
            e.payload_as(DecisionRecord).plan.releases for e in site.sidecar.entries(KIND, known)
        ),
        what="gave back",
    )
    site.observed(trainer, 2)
    entries = site.sidecar.entries(KIND)
    assert len(entries) >= 10
    assert any(e.payload_as(DecisionRecord).plan.releases for e in entries)
    assert [a for a in take_again(entries) if not a.is_equal] == []
    assert repeated_equal(site.sidecar.entries()) >= 2  # a start, a give-back


def test_a_second_daemon_on_the_same_state_is_refused(site: DaemonSite) -> None:
    second = process.run(site.sidecar.argv(), timeout_s=60)
    assert second.returncode == ExitCode.ALREADY_RUNNING
    assert f"{site.sidecar.pid}" in second.stderr
    assert "BFT-1102" in second.stderr
    assert "Traceback" not in second.stderr


def test_reserve_is_kept_free(site: DaemonSite) -> None:
    trainer = site.submit("slow", SLOW, n_max=4)
    site.observed(trainer, 2)
    wait_for(
        lambda: sorted(n.use for n in site.client.nodes()) == ["held", "held", "reserve"],
        what="the reserve",
    )


def test_explain_names_the_constraint_that_shaped_the_answer(site: DaemonSite) -> None:
    """Two nodes are in the pool, and it may have 1 or 4."""
    trainer = site.submit("sized", SLOW, n_max=4, sizes=(1, 4))
    site.observed(trainer, 1)
    explanation = site.client.explain(trainer)
    (effect,) = explanation.constraints
    assert effect.names == ("size-sets",)
    assert (len(effect.nodes), len(effect.nodes_without)) == (1, 2)
    assert "Without sets of sizes (--nodes), the last decision would have given it 2 nodes" in (
        " ".join(explanation.sentences)
    )


def test_submission_is_durable(site: DaemonSite) -> None:
    trainer = site.submit("slow", SLOW, n_min=4, n_max=4)
    site.sidecar.kill()
    site.sidecar.start()
    view = site.client.trainer(trainer)
    assert view.record.state is TrainerState.QUEUED
    sentence = wait_for(
        lambda: s if "n_min" in (s := site.client.explain(trainer).sentences[0]) else None,
        what="an explanation",
    )
    assert "4 nodes" in sentence


def test_every_metric_is_exported(site: DaemonSite) -> None:
    """Whatever alerts, dashboards and the guide name, by the rules of Prometheus."""
    text = site.client.metrics()
    named = monitoring.named().union(f"bftrainer_{name}" for name in MEANINGS)
    assert named - monitoring.exported(text) == set()
    for what in ("poll", "decision"):
        assert f"bftrainer_last_{what}_timestamp_seconds 0.0" not in text
    monitoring.promtool("check", "metrics", stdin=text)


def test_unknown_trainers_are_said_to_be_unknown(site: DaemonSite) -> None:
    with pytest.raises(BftError) as caught:
        site.client.explain("t99")
    assert caught.value.code == "BFT-1004"


def _state_of(site: DaemonSite, node: str) -> str:
    return {n.name: n.state for n in site.client.nodes()}[node]


def _worker_pids(site: DaemonSite, trainer_id: str) -> list[int]:
    """Live workers by what they printed first, oldest first."""
    lines = [
        line
        for log in site.client.logs(trainer_id)
        for line in Path(log.path).read_text().splitlines()
    ]
    pids = [int(line.split()[1]) for line in lines if line.startswith("worker ")]
    return [p for p in pids if is_running(p)]
