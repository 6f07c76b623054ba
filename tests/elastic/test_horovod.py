"""Elastic Horovod scripts under commits: every sample once, whoever leaves, dies or joins."""

from __future__ import annotations

import json
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

import trainers.examples
from bftrainer.fleet.runtimes.horovod import BOOTSTRAP
from bftrainer.ground.protocol import Entered, Interrupted, Progress, Report, Reported, Warm
from tests.elastic.controller import Controller, TemplateProcess

pytestmark = pytest.mark.skipif(find_spec("horovod") is None, reason="make horovod builds it")

SGD = Path(trainers.examples.__file__).parent / "horovod_sgd.py"
BATCH = 24
LONG = 100_000
MANY_BYTES = 1 << 16  # more than any message of Horovod's own, less than the kernel holds
GLOO_TIMEOUT_S = 30.0  # Horovod's own: nothing here may wait for it

LOOKS = """\
import horovod.torch as hvd, json, os, time, torch
hvd.init()
model = torch.nn.Linear(1, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.0), named_parameters=model.named_parameters())

@hvd.elastic.run
def train(state):
    while hvd.size() > 1 or not os.path.exists("enough"):
        time.sleep(0.005)
        optimizer.zero_grad()
        model(torch.ones(24 // hvd.size(), 1)).sum().backward()
        optimizer.step()
        state.step += 1
        state.seen = state.seen + [state.step]
        state.check_host_updates()  # and no commit

state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, seen=[])
train(state)
if hvd.rank() == 0:
    open("seen.json", "w").write(json.dumps([state.step, state.seen]))
"""

LARGE = """\
import os
os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "3600"  # who waits for it does not end
import horovod.torch as hvd, time, torch
hvd.init()
large = torch.ones(1 << 25)

@hvd.elastic.run
def train(state):
    while True:
        print("sends", flush=True)
        if hvd.size() > 1:
            hvd.broadcast_(large, root_rank=1)
        else:
            time.sleep(0.01)
        state.step += 1
        state.commit()

train(hvd.elastic.TorchState(step=0))
"""

RUNGS = """\
import horovod.torch as hvd, os, torch
from bftrainer import elastic
hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=elastic.params()["lr"], momentum=0.9),
    named_parameters=model.named_parameters())
mine = torch.arange(24.0)[hvd.rank()::hvd.size()].reshape(-1, 1) / 24

@hvd.elastic.run
def train(state):
    while state.step < int(os.environ["BFT_SAMPLES"]) // 24:
        optimizer.zero_grad()
        ((model(mine) - mine) ** 2).mean().backward()
        optimizer.step()
        state.step += 1
        if state.step % 10 == 0:
            elastic.report(-state.step)
            state.commit()

state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
train(state)
elastic.report(model.weight)
"""


def start(c: Controller, count: int, *, steps: int = LONG, others: int = 0) -> list[str]:
    out = str(c.directory / "done.json")
    args = ["--steps", str(steps), "--batch", str(BATCH), "--pause", "0.01", "--out", out]
    return c.start(
        BOOTSTRAP,
        [str(others), str(SGD), *args, "--commit-every", "2"],
        count=count,
        checkpoint_interval_s=0.2,
    )


def trains(c: Controller, worker_id: str) -> None:
    """Wait for its next two reports."""
    said = c.workers[worker_id].all
    before = len(said(Progress))
    c.until(lambda: len(said(Progress)) >= before + 2, f"{worker_id} trains")


def enter_soon(c: Controller, members: list[str]) -> None:
    """Wait for the newest generation, not as long as Horovod's own timeout."""

    def have_entered() -> bool:
        newest = [c.workers[i].all(Entered)[-1].generation for i in members]
        return set(newest) == {c.generation}

    c.until(have_entered, "they go on", timeout_s=GLOO_TIMEOUT_S / 2)


def most_unsent_bytes(pid: int) -> int:
    """Return the most that waits in a connection of a process for the other side."""
    links = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    unsent = [int(r[4].partition(":")[0], 16) for r in rows if f"socket:[{r[9]}]" in links]
    return max(unsent, default=0)


def assert_exact(directory: Path, steps: int) -> None:
    n = steps * BATCH
    expected = {"step": steps, "samples": n, "index_sum": n * (n - 1) // 2}
    assert json.loads((directory / "done.json").read_text()) == expected


def test_rank_0_leaves_and_a_rescale_passes_a_joiner_that_is_warming_up(
    tmp_path: Path, template: TemplateProcess
) -> None:
    steps = 400
    with Controller(tmp_path, template) as c:
        a, b = start(c, 2, steps=steps)
        assert [e.step for e in c.form([a, b], new=[a, b])] == [0, 0]
        trains(c, a)
        (d,) = start(c, 1, steps=steps, others=2)
        c.up(d)  # it has built its model, or is about to
        c.form([b])  # rank 0 leaves meanwhile, and what d expected is wrong
        c.until(lambda: c.workers[a].returncode == 0, "a has left")
        trains(c, b)
        entered = c.form([b, d], new=[d])
        assert [(e.rank, e.size) for e in entered] == [(0, 2), (1, 2)]
        assert entered[0].step == entered[1].step > 0
        finished = c.finished()
        assert {(f.step, f.samples) for f in finished} == {(steps, steps * BATCH)}
        assert not any(w.all(Interrupted) for w in c.workers.values())
        assert "rank 2 of 3" in c.workers[d].log.read_text()  # never as the first
    assert_exact(tmp_path, steps)


def test_members_and_joiners_are_killed_and_all_resume_from_a_checkpoint(
    tmp_path: Path, template: TemplateProcess
) -> None:
    steps = 700
    with Controller(tmp_path, template) as c:
        a, b, d = start(c, 3, steps=steps)
        c.form([a, b, d], new=[a, b, d])
        trains(c, a)
        (dead,) = start(c, 1, steps=steps, others=3)
        c.kill(dead)  # while it warms up: nobody notices
        c.until(lambda: c.workers[dead].returncode is not None, "it is gone")
        trains(c, a)
        # The newest dies, and the commit that leaves it out knows nothing of it.
        c.kill(d)
        port = c.prepare([a, b])
        c.commit([a, b], port)
        enter_soon(c, [a, b])
        trains(c, a)
        # Rank 0 dies.
        c.kill(a)
        c.until(lambda: c.workers[a].returncode == -signal.SIGKILL, "a is gone")
        c.form([b], abandon=True)
        trains(c, b)
        # A joiner dies when it has said that it is ready.
        (e,) = start(c, 1, steps=steps, others=1)
        c.warm([e])
        port = c.prepare([b, e])
        c.kill(e)
        c.until(lambda: c.workers[e].returncode is not None, "e is gone")
        c.commit([b, e], port)
        c.form([b], abandon=True, is_retry=True)
        trains(c, b)
        c.until(c.saved, "a checkpoint")
        c.kill(b)
        c.until(lambda: c.workers[b].returncode is not None, "b is gone")
        c.members = []
        f, g = start(c, 2, steps=steps)
        entered = c.form([f, g], new=[f, g])
        assert entered[0].resumed_from == entered[1].resumed_from != ""
        assert entered[0].step > 0
        trains(c, f)
        c.park()
        assert c.saved()
        (h,) = start(c, 1, steps=steps)
        (last,) = c.form([h], new=[h])
        assert last.step >= entered[0].step
        c.finished()
    assert_exact(tmp_path, steps)


def test_one_that_hangs_is_left_behind_at_once(tmp_path: Path, template: TemplateProcess) -> None:
    with Controller(tmp_path, template) as c:
        ids = start(c, 3)
        c.form(ids, new=ids)
        trains(c, ids[0])
        c.kill(ids[1], signal.SIGSTOP)  # its sockets stay open
        others = [ids[0], ids[2]]
        port = c.prepare(others)
        c.members = others
        c.commit(others, port, abandon=True)
        enter_soon(c, others)
        trains(c, ids[0])


def test_one_who_dies_in_the_middle_of_a_message_is_left_behind_at_once(
    tmp_path: Path, template: TemplateProcess
) -> None:
    script = tmp_path / "large.py"
    script.write_text(LARGE)
    with Controller(tmp_path, template) as c:
        a, b = c.start(BOOTSTRAP, ["0", str(script)], count=2)
        c.warm([a, b])
        c.form([a, b])

        def is_receiving() -> bool:
            c.kill(a, signal.SIGSTOP)
            if most_unsent_bytes(c.workers[b].pid) > MANY_BYTES:
                return True
            c.kill(a, signal.SIGCONT)
            return False

        c.until(is_receiving, "a takes no more of what b sends")
        c.kill(b)
        c.until(lambda: c.workers[b].returncode is not None, "b is gone")
        c.kill(a, signal.SIGCONT)
        c.members = [a]
        c.form([a], abandon=True)


def test_a_script_that_only_looks_for_changes_keeps_its_counters(
    tmp_path: Path, template: TemplateProcess
) -> None:
    script = tmp_path / "looks.py"
    script.write_text(LOOKS)
    with Controller(tmp_path, template) as c:
        (a,) = c.start(BOOTSTRAP, ["0", str(script)])
        c.form([a], new=[a])
        trains(c, a)
        (b,) = c.start(BOOTSTRAP, ["1", str(script)])
        assert c.form([a, b], new=[b])[0].step > 0  # not set back to the last commit: there is none
        trains(c, b)
        c.form([b])
        (tmp_path / "enough").touch()
        (finished,) = c.finished([b])
    step, seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == list(range(1, step + 1))
    assert step == finished.step  # as counted by the optimizer: nothing was set back


def test_rungs_give_the_bits_and_reports_of_one_go(
    tmp_path: Path, template: TemplateProcess
) -> None:
    script = tmp_path / "rungs.py"
    script.write_text(RUNGS)

    def train(directory: Path, *budgets: int) -> tuple[Report, ...]:
        directory.mkdir()
        chosen = (("BFT_PARAMETERS", '{"lr": 0.1}'),)
        with Controller(directory, template) as c:
            for steps in budgets:
                length = {"samples": steps * BATCH, "environment": chosen}
                ids = c.begin(BOOTSTRAP, ["0", str(script)], count=2, **length)
                c.finished()
                assert not c.workers[ids[1]].all(Reported)
            return c.workers[ids[0]].all(Reported)[-1].reports

    at_once = train(tmp_path / "at-once", 45)
    assert train(tmp_path / "rungs", 5, 15, 45) == at_once
    assert [(r.step, r.samples) for r in at_once] == [(s, s * BATCH) for s in (10, 20, 30, 40, 45)]
    assert at_once[-1].value == pytest.approx(1.0, abs=0.2), "learnt"


def test_a_script_without_an_elastic_function_is_told(
    tmp_path: Path, template: TemplateProcess
) -> None:
    script = tmp_path / "plain.py"
    script.write_text("import horovod.torch as hvd\nhvd.init()\n")
    with Controller(tmp_path, template) as c:
        (a,) = c.start(BOOTSTRAP, ["0", str(script)])
        c.warm([a])
        c.commit([a], c.prepare([a]))
        failed = c.failed(a)
        assert failed.code == "BFT-1431"
        assert "hvd.elastic.run" in failed.next_step
        assert c.workers[a].all(Warm)
