"""How trainers end with real workers: crashes that repeat, mistakes, a cancel that saves."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bftrainer.daemon.explain.lives import VAIN_STARTS
from bftrainer.model.trainer import CheckpointContract, TrainerState
from bftrainer.model.views import TrainerView
from tests.integration.daemon.test_daemon import DaemonSite
from tests.integration.daemon_scripts import SLOW
from tests.support.processes import below, is_running, parent_of
from tests.support.site import opened_site
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.2
reserve_nodes_per_type: 0
min_gap_s: 2
gap_margin_s: 1
join_window_s: 0.5
hold_idle_s: 1
explore_budget: 0
failure_budget: 4
quarantine_s: 5
"""
RAISE = "raise RuntimeError('the ninth batch is bad')"
# The ninth batch is met again at each try, after a few steps that are done once more.
RAISES = SLOW.replace(
    "time.sleep(0.05)\n",
    f"time.sleep(0.2)\n        if run.step_count >= 8:\n            {RAISE}\n",
)
KILLED = RAISES.replace(RAISE, "os.kill(os.getpid(), 9)")
PROGRAM = """\
import os, pathlib, signal, sys, time
def save(*_):
    (pathlib.Path(os.environ["BFT_CHECKPOINT_DIR"]) / "state").write_text("saved")
    sys.exit(85)
signal.signal(signal.SIGUSR1, save)
print("BFT step=1 samples=1", flush=True)
while True:
    time.sleep(0.1)
"""
SILENT = "import time\nprint('BFT ready', flush=True)\ntime.sleep(3600)\n"
KILL_AGENT = """\
import os, pathlib
def parent_of(pid):
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
def kill_agent(once=False):
    mark, template = pathlib.Path("killed"), parent_of(os.getppid())
    if not (once and mark.exists()):
        mark.touch()
        os.kill(parent_of(template), 9)
"""
KILLS_AGENTS = KILL_AGENT + RAISES.replace(RAISE, "kill_agent()")
KILLS_ONE_AGENT = KILL_AGENT + RAISES.replace(RAISE, "kill_agent(once=True)")
LOADS = SLOW.replace("shuffle=True)", "shuffle=True, num_workers=2)").replace(
    "        run.step()\n",
    "        if run.step():\n"
    "            print(run.step_count, file=open(f'steps-{os.getpid()}', 'a'), flush=True)\n",
)
ENDS_EARLY = SLOW.replace("        run.step()", "        run.step()\n    break")


shared_site = opened_site(DaemonSite, n_nodes=2, policy=POLICY, options=())


def _in_trouble(site: DaemonSite, trainer: str) -> TrainerView | None:
    view = site.view(trainer)
    return view if view.trouble else None


def _failed_on(site: DaemonSite, trainer: str) -> set[str]:
    found = [e.payload for e in site.sidecar.entries("worker-failed")]
    return {one["what"]["node"] for one in found if one["trainer_id"] == trainer}


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "cause", "interval_s"),
    [
        (RAISES, "RuntimeError: the ninth batch is bad", 3600.0),
        pytest.param(
            KILLED,
            "signal 9 (SIGKILL); an out-of-memory kill",
            1.0,
            marks=pytest.mark.long,
        ),
    ],
    ids=["raises", "is killed"],
)
def test_a_crash_after_the_same_step_again_and_again_is_given_up_with_its_cause(
    site: DaemonSite, text: str, cause: str, interval_s: float
) -> None:
    trainer = site.submit("crash", text, n_max=1, checkpoint_interval_s=interval_s)
    view = wait_for(lambda: _in_trouble(site, trainer), what="the first failure")
    assert cause in view.trouble
    assert " of 4 without getting any further" in view.trouble
    assert any(cause in s for s in site.client.explain(trainer).sentences)
    view = site.in_state(trainer, TrainerState.FAILED)
    record = view.record
    assert cause in record.reason
    assert "failure 4 in a row without getting beyond step" in record.reason
    assert record.failing.log_path in record.reason
    assert record.failing.count == 4
    assert 4 <= record.failures <= 8  # it may have got, or said so, a step further
    assert Path(record.failing.log_path).exists()
    # Before it was given up another node was tried.
    wait_for(lambda: len(_failed_on(site, trainer)) == 2, what="two nodes in the journal")


@pytest.mark.long
def test_a_script_that_kills_its_agent_again_and_again_is_given_up(site: DaemonSite) -> None:
    trainer = site.submit("killer", KILLS_AGENTS, n_max=1, checkpoint_interval_s=3600.0)
    record = site.in_state(trainer, TrainerState.FAILED).record
    assert record.reason.startswith("BFT-1310: The agent of its node was killed")
    assert "failure 4 in a row without getting beyond step" in record.reason
    assert record.failing.log_path in record.reason
    assert (record.failures, record.failing.losses) == (4, 5)


@pytest.mark.long
def test_one_agent_that_is_killed_costs_its_trainer_nothing(site: DaemonSite) -> None:
    trainer = site.submit("unlucky", KILLS_ONE_AGENT, n_max=1)
    wait_for(lambda: site.view(trainer).record.failing.losses, what="the loss is known")
    wait_for(lambda: site.steps(trainer) > 10, what="more steps than ever before")
    assert site.view(trainer).record.failures == 0


@pytest.mark.long
def test_sigterm_to_all_of_a_pilot_with_loaders_costs_its_trainer_no_step(site: DaemonSite) -> None:
    trainer = site.submit("loads", LOADS, checkpoint_interval_s=3600.0)
    site.observed(trainer, 2)
    files = site.base / site.prefix / "loads"

    def steps() -> dict[int, list[int]]:
        texts = {int(f.name.partition("-")[2]): f.read_text() for f in files.glob("steps-*")}
        return {pid: [int(n) for n in text.split("\n")[:-1]] for pid, text in texts.items()}

    wait_for(lambda: len(steps()) == 2 and min(map(len, steps().values())) > 5, what="both train")
    survivor, victim = steps()
    agent = victim
    for _ in ("keeper", "template", "agent"):
        agent = parent_of(agent)
    before = steps()[survivor][-1]
    for pid in sorted([agent, *below(agent)], reverse=True):  # loaders first
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wait_for(lambda: steps()[survivor][-1] > before + 20, what="the other trains on")
    assert not is_running(victim)
    survived, lost = steps()[survivor], steps()[victim]
    assert survived == list(range(survived[0], survived[-1] + 1)), "no step is done again"
    assert lost[-1] < survived[-1]
    assert site.view(trainer).record.failures == 0
    site.client.cancel(trainer, now=True)


@pytest.mark.long
def test_a_program_whose_starts_keep_nothing_is_named(site: DaemonSite) -> None:
    trainer = site.submit(
        "silent", SILENT, runtime="command", script=sys.executable, args=("train.py",),
        contract=CheckpointContract(), interpreter="", epochs=None, n_max=1,
    )  # fmt: skip

    def starts(count: int) -> None:
        def lives() -> tuple[int, int]:
            found = site.view(trainer).record.lives
            return found.starts, len(found.lasted_s)

        wait_for(lambda: lives() == (count, count - 1), what=f"start {count}")

    for count in range(1, VAIN_STARTS):
        starts(count)
        assert not site.view(trainer).trouble
        site.server.client.submit(n_nodes=2, limit_s=60, duration_s=1)  # all there are
    starts(VAIN_STARTS)
    said = site.view(trainer).trouble
    assert said.startswith("No progress in its last 3 starts: it reported none.")
    assert said in site.client.explain(trainer).sentences
    assert "bftrainer_trainers_without_progress 1.0" in site.client.metrics()


def test_a_syntax_error_is_tried_once(site: DaemonSite) -> None:
    trainer = site.submit("syntax", "def train(:\n", n_max=1)
    record = site.in_state(trainer, TrainerState.FAILED).record
    assert record.failures == 1
    assert "SyntaxError" in record.reason
    assert "This fails on every node" in record.reason


@pytest.mark.long
def test_a_missing_package_is_tried_on_one_other_node(site: DaemonSite) -> None:
    trainer = site.submit("package", "import no_such_package\n", n_max=1)
    record = site.in_state(trainer, TrainerState.FAILED).record
    assert record.failures == 2
    assert "No module named 'no_such_package'" in record.reason
    assert "It failed the same way on " in record.reason
    wait_for(lambda: len(_failed_on(site, trainer)) == 2, what="two nodes in the journal")


def test_cancel_writes_a_checkpoint_first(site: DaemonSite) -> None:
    trainer = site.submit("slow", SLOW, checkpoint_interval_s=3600.0)
    site.observed(trainer, 2)
    site.trains_on(trainer)
    before = site.steps(trainer)
    said = site.client.cancel(trainer).record
    assert not said.state.is_final
    assert said.reason.startswith("Cancelling")
    record = site.in_state(trainer, TrainerState.CANCELLED).record
    saved = list(Path(record.spec.checkpoint_dir).glob("*.bft"))
    assert saved
    assert record.progress.step >= before
    assert f"Its state after step {record.progress.step} is in its checkpoint" in record.reason
    nodes = {n.name: n.trainer_id for n in site.client.nodes()}
    assert trainer not in nodes.values()


def test_cancel_has_a_program_write_its_checkpoint_first(site: DaemonSite) -> None:
    trainer = site.submit(
        "program",
        PROGRAM,
        runtime="command",
        script=sys.executable,
        args=("train.py",),
        contract=CheckpointContract(grace_s=20.0),
        interpreter="",
        epochs=None,
        n_max=1,
        checkpoint_interval_s=3600.0,
    )
    site.trains_at(trainer, 1)
    assert not site.client.cancel(trainer).record.state.is_final
    record = site.in_state(trainer, TrainerState.CANCELLED).record
    assert "is in its checkpoint" in record.reason
    assert (Path(record.spec.checkpoint_dir) / "latest" / "state").read_text() == "saved"


def test_cancel_now_kills(site: DaemonSite) -> None:
    trainer = site.submit("slow", SLOW, checkpoint_interval_s=3600.0)
    site.observed(trainer, 1, 2)
    directory = Path(site.client.trainer(trainer).record.spec.checkpoint_dir)
    [first] = wait_for(lambda: list(directory.glob("*.bft")), what="that of the first step")
    record = site.client.cancel(trainer, now=True).record
    assert record.state is TrainerState.CANCELLED
    assert list(directory.glob("*.bft")) == [first]


def test_a_queued_trainer_is_cancelled_at_once(site: DaemonSite) -> None:
    trainer = site.submit("large", SLOW, n_min=5, n_max=5)
    assert site.client.cancel(trainer).record.state is TrainerState.CANCELLED


@pytest.mark.long
def test_a_cancel_goes_on_under_the_next_daemon(site: DaemonSite) -> None:
    # A step of 3 s: the daemon is gone before anybody gets to the boundary.
    text = SLOW.replace("time.sleep(0.05)", "time.sleep(3.0 if run.step_count > 2 else 0.05)")
    trainer = site.submit("slow", text, n_max=1, checkpoint_interval_s=3600.0)
    wait_for(lambda: site.steps(trainer) > 2, what="slow steps")
    assert not site.client.cancel(trainer).record.state.is_final
    site.sidecar.kill()
    site.sidecar.start()
    record = site.in_state(trainer, TrainerState.CANCELLED).record
    assert list(Path(record.spec.checkpoint_dir).glob("*.bft"))


def test_a_script_that_ends_before_its_work_is_done_says_so(site: DaemonSite) -> None:
    trainer = site.submit("early", ENDS_EARLY, n_max=1, epochs=4)
    record = site.in_state(trainer, TrainerState.FINISHED).record
    assert "of 4 epochs (--epochs)" in record.reason
