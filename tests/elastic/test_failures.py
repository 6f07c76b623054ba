"""Members that die, hang or fall behind: what is lost is at most the step in flight."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from bftrainer.elastic.process import worker_keeper
from bftrainer.ground.protocol import Failed, Interrupted, Saved
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"


def progress(c: Controller, steps: int = 5) -> None:
    c.trained_to(journal.last_step(c.directory) + steps)


def start(c: Controller, count: int, **settings: object) -> list[str]:
    settings = {"epochs": 1_000_000, "delay_s": 0.002, **settings}
    ids = c.start(TRAIN, [json.dumps(settings)], count=count)
    c.warm(ids)
    return ids


def assert_consistent(directory: Path) -> None:
    assert journal.disagreements(directory, "hash", "lr", "updates") == []
    last = max(e["epoch"] for e in journal.entries(directory, "try"))
    for epoch, count in journal.committed_ids(directory).items():
        assert set(count.values()) == {1}
        if epoch < last:
            assert len(count) == 203


def test_killed_hung_and_newborn_dead_members(tmp_path: Path, template: TemplateProcess) -> None:
    with Controller(tmp_path, template) as c:
        a, b, d, e = start(c, 4)
        c.form([a, b, d])
        progress(c)
        # The store's and the data's owner, rank 0, dies.
        c.kill(a)
        c.until(lambda: c.workers[a].returncode == -signal.SIGKILL, "exit status of a kill")
        c.until(lambda: all(c.workers[i].all(Interrupted) for i in (b, d)), "both noticed")
        c.form([b, d], abandon=True)
        progress(c)
        # A member hangs: nothing closes its sockets, only the commit tells.
        c.kill(d, signal.SIGSTOP)
        entered = c.form_without_answer_of([b], stopped=d)
        assert entered[0].size == 1
        c.kill(d, signal.SIGKILL)
        progress(c)
        # A joiner dies between its Ready and its Entered.
        port = c.prepare([b, e])
        c.kill(e)
        c.until(lambda: c.workers[e].returncode is not None, "e is gone")
        c.commit([b, e], port)
        c.form([b], abandon=True)
        progress(c)
        (f,) = start(c, 1)
        c.form([b, f])
        progress(c)
        c.park()
    assert_consistent(tmp_path)


def test_who_was_lost_is_said_in_one_line(tmp_path: Path, template: TemplateProcess) -> None:
    with Controller(tmp_path, template) as c:
        first, second = start(c, 2)
        c.form([first, second])
        progress(c)
        c.kill(first)
        c.until(lambda: c.workers[second].all(Interrupted), "noticed")
        [entered] = c.form([second], abandon=True)
        progress(c)
        log = c.workers[second].log.read_text()
        reason = c.workers[second].all(Interrupted)[0].reason
    assert f"bftrainer: lost {first} of generation 1.1: step {entered.step + 1} is redone\n" in log
    for text in (log, reason):
        assert "gloo/transport" not in text
        assert "GLHF" not in text


@pytest.mark.parametrize("laggard", [0, 1])
def test_a_member_one_step_behind_gets_the_state_of_the_others(
    tmp_path: Path, template: TemplateProcess, laggard: int
) -> None:
    with Controller(tmp_path, template) as c:
        ids = start(c, 2, fail_at=[9, laggard])
        c.form(ids)
        c.until(lambda: all(c.workers[i].all(Interrupted) for i in ids), "both interrupted")
        steps = [c.workers[i].all(Interrupted)[0].step for i in ids]
        assert steps[laggard] == 8
        assert steps[1 - laggard] == 9
        entered = c.form(ids, abandon=True)
        assert [e.step for e in entered] == [9, 9]
        progress(c, 15)
        c.form(ids[:1])
        c.park()
    assert_consistent(tmp_path)


def test_the_only_member_with_a_state_dies_while_handing_it_over(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        a, b = start(c, 2, width=400_000)
        c.form([a])
        progress(c, 2)
        port = c.prepare([a, b])
        c.commit([a, b], port)
        c.kill(a)
        c.until(lambda: c.workers[a].returncode is not None, "a is gone")
        # Without a checkpoint the run starts again, from what b built itself; if the
        # transfer was quicker than the kill, it goes on.
        (entered,) = c.form([b], abandon=True)
        assert entered.step == 0 or entered.step >= 2
        c.until(
            lambda: any(
                e["step"] > entered.step and e["generation"] == c.generation
                for e in journal.entries(tmp_path, "commit")
            ),
            "b trains",
        )


def test_a_park_without_rank_0_is_saved_by_the_member_that_is_named(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        first, *others = start(c, 3)
        c.form([first, *others])
        progress(c, 6)  # the others are one step behind it at most
        c.kill(first)
        c.until(lambda: c.workers[first].returncode is not None, "death noticed")
        c.park(saver=others[0], lost=first)
        [saved] = c.workers[others[0]].all(Saved)
        assert saved.step >= 5
        assert not c.workers[others[1]].all(Saved)
        resumed = c.form(start(c, 1))
        assert resumed[0].step == saved.step
    assert_consistent(tmp_path)


def test_a_retry_of_a_generation_has_its_own_attempt(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        a, b, d = start(c, 3)
        c.form([a])
        progress(c)
        port = c.prepare([a, b, d])
        c.kill(d)
        c.until(lambda: c.workers[d].returncode is not None, "d is gone")
        c.commit([a, b, d], port)
        entered = c.form([a, b], abandon=True, is_retry=True)
        assert {(e.generation, e.attempt) for e in entered} == {(2, 2)}
        progress(c)
        c.park()
    assert_consistent(tmp_path)


def test_the_agents_death_ends_its_worker_at_once(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        (a,) = start(c, 1)
        c.form([a])
        progress(c)
        c.hang_up(a)
        c.until(lambda: c.workers[a].returncode == 1, "worker exits with 1")


def test_a_commit_of_an_earlier_daemon_is_refused(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        (a,) = start(c, 1)
        port = c.prepare([a])
        c.commit([a], port, incarnation=3)
        c.entered([a])
        c.generation += 1
        c.commit([], 0, incarnation=2)
        c.until(lambda: "refused a commit" in c.workers[a].log.read_text(), "refusal in the log")
        progress(c)
        assert c.workers[a].returncode is None


@pytest.mark.parametrize("ended", ["loaders", pytest.param("all", marks=pytest.mark.long)])
def test_a_worker_whose_loaders_the_batch_system_ends_counts_as_lost(
    tmp_path: Path, template: TemplateProcess, ended: str
) -> None:
    """SIGTERM reaches all processes of a pilot, in any order, and its loaders may die first."""
    with Controller(tmp_path, template) as c:
        stays, goes = start(c, 2, loader_workers=2, persistent=True, delay_s=0.02)
        c.form([stays, goes])
        progress(c)
        loaders = worker_keeper.children(c.workers[goes].pid)
        assert len(loaders) >= 2
        for loader in loaders:
            os.kill(loader, signal.SIGTERM)
        if ended == "all":
            c.kill(goes, signal.SIGTERM)
        c.until(lambda: c.workers[goes].returncode is not None, "it has ended")
        assert c.workers[goes].all(Failed) == []
        assert c.workers[goes].returncode == -signal.SIGTERM
        steps = journal.last_step(tmp_path)
        [entered] = c.form([stays], abandon=True)
        assert entered.step >= steps - 1, "at most one step is redone"
        progress(c)
        assert list(tmp_path.rglob("*.tmp")) == []
    assert_consistent(tmp_path)
