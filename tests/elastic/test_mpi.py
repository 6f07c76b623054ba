"""Programs over MPI while members come, go and die: nothing is lost, results are the same."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import trainers.examples
from bftrainer import process
from bftrainer.elastic.protocol import Commit, Entered, Interrupted, Progress, Saved
from bftrainer.elastic.store import StoreClient
from tests.elastic.controller import Controller
from tests.elastic.mpi_workers import MpiWorkers

EXAMPLES = Path(trainers.examples.__file__).parent
SGD, HEAT = EXAMPLES / "mpi_sgd.py", EXAMPLES / "mpi_heat.py"
BATCH = 24
ITERATIONS = 160
TOLERANCE = 1e-9  # of the heat equation's solution, whose largest value is about 0.01


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Controller]:
    with MpiWorkers(tmp_path) as workers, Controller(tmp_path, workers) as controller:
        yield controller


def start(c: Controller, script: Path, *args: object, count: int = 3) -> list[str]:
    ids = c.start(script, [str(a) for a in args], count=count, checkpoint_interval_s=600.0)
    c.warm(ids)
    return ids


def goes_on(c: Controller) -> None:
    """Wait for a report of a step that was not reached when this was called."""
    first = c.workers[c.members[0]]

    def step() -> int:
        return max(m.step for m in first.said if isinstance(m, Progress | Entered))

    before = step()
    c.until(lambda: step() > before + 2, "more steps")


def at_meeting(commit: Commit, worker_id: str) -> None:
    """Wait until a member has come to where the members of a generation meet."""
    prefix = f"{commit.generation}.{commit.attempt}.{commit.token}"
    store = StoreClient(commit.store_host, commit.store_port, 60)
    store.get(f"{prefix}/here/{worker_id}")
    store.close()


def assert_all_samples_once(path: Path, n_steps: int) -> None:
    done = json.loads(path.read_text())
    n_samples = n_steps * BATCH
    assert (done["step"], done["samples"]) == (n_steps, n_samples)
    assert done["index_sum"] == n_samples * (n_samples - 1) // 2


def test_members_join_leave_and_die_and_every_sample_is_used_once(control: Controller) -> None:
    c, n_steps, out = control, 400, control.directory / "done.json"
    a, b, d, e = start(c, SGD, "--steps", n_steps, "--pause", 0.02, "--out", out, count=4)
    c.form([a, b])
    goes_on(c)
    c.form([a, b, d])
    goes_on(c)
    entered = c.form([b, d, e])  # the first rank leaves and another comes, at one boundary
    assert all(one.step > 0 for one in entered)
    c.until(lambda: c.workers[a].returncode == 0, "who left has ended")
    goes_on(c)
    c.kill(b)
    c.until(lambda: c.workers[b].returncode == -signal.SIGKILL, "killed")
    assert len(c.form([d, e], abandon=True)) == 2
    goes_on(c)
    c.kill(d, signal.SIGSTOP)  # a node that was cut off: silent, its sockets open
    c.form_without_answer_of([e], stopped=d)
    goes_on(c)
    c.kill(d, signal.SIGCONT)  # what it sends now ends calls of the old generation, too late
    goes_on(c)
    c.kill(d, signal.SIGKILL)
    c.finished([e])
    assert_all_samples_once(out, n_steps)


def test_a_joiner_that_dies_on_the_way_in_does_not_hold_up_the_others(control: Controller) -> None:
    c, n_steps, out = control, 300, control.directory / "done.json"
    a, b, d, e = start(c, SGD, "--steps", n_steps, "--pause", 0.02, "--out", out, count=4)
    c.form([a, b])
    goes_on(c)
    port = c.prepare([a, b, d])
    c.kill(d)  # it will never come to the meeting
    at_meeting(c.commit([a, b, d], port), a)
    c.until(lambda: c.workers[d].returncode is not None, "killed")
    c.members = [a, b]
    assert len(c.form([a, b, e], abandon=True)) == 3
    assert c.workers[a].all(Interrupted)
    goes_on(c)
    c.finished([a])
    assert_all_samples_once(out, n_steps)


def test_a_member_that_comes_back_spoils_nothing(control: Controller) -> None:
    c, n_steps, out = control, 400, control.directory / "done.json"
    a, b, d = start(c, SGD, "--steps", n_steps, "--pause", 0.01, "--out", out)
    c.form([a, b, d])
    goes_on(c)
    c.kill(a, signal.SIGSTOP)
    c.form_without_answer_of([b, d], stopped=a)
    c.kill(a, signal.SIGCONT)
    c.finished([b])
    assert_all_samples_once(out, n_steps)


def reference(directory: Path) -> np.ndarray:
    """Return the solution of a run of one member, started by hand."""
    path = directory / "reference.npy"
    argv = (sys.executable, str(HEAT), "--iterations", str(ITERATIONS), "--out", str(path))
    done = process.run(argv, timeout_s=60)
    assert done.is_ok, done.stderr
    found: np.ndarray = np.load(path)
    return found


def test_a_domain_that_is_cut_anew_and_loses_a_part_gives_the_same_solution(
    control: Controller,
) -> None:
    c, out = control, control.directory / "solution.npy"
    a, b, d = start(c, HEAT, "--iterations", ITERATIONS, "--pause", 0.05, "--out", out)
    c.form([a])
    goes_on(c)
    c.form([a, b, d])
    goes_on(c)
    c.form([b, d])
    goes_on(c)
    c.kill(b)  # with half of the domain: the rest has a copy of it
    c.until(lambda: c.workers[b].returncode is not None, "killed")
    (entered,) = c.form([d], abandon=True)
    assert entered.step > 0
    assert not entered.resumed_from
    c.finished([d])
    difference = np.abs(np.load(out) - reference(c.directory)).max()
    assert difference < TOLERANCE * 0.01


def test_a_parked_domain_resumes_from_its_file_at_another_size(control: Controller) -> None:
    c, out = control, control.directory / "solution.npy"
    args = ("--iterations", ITERATIONS, "--pause", 0.03, "--out", out)
    a, b, d = start(c, HEAT, *args)
    c.form([a, b, d])
    goes_on(c)
    c.park()
    saved = [m for w in c.workers.values() for m in w.all(Saved)]
    assert len(saved) == 1
    e, f = start(c, HEAT, *args, count=2)
    entered = c.form([e, f])
    assert {one.step for one in entered} == {saved[0].step}
    assert entered[0].resumed_from == saved[0].path
    c.finished([e])
    assert np.abs(np.load(out) - reference(c.directory)).max() < TOLERANCE * 0.01


HANGS = """\
import time
import numpy as np
from bftrainer.elastic import mpi
def step(run):
    if run.rank == 1:
        time.sleep(3600)
    print("calls", flush=True)
    run.comm.raw.Allreduce(np.ones(1), np.empty(1))
run = mpi.Run(replicated={"x": np.zeros(1)})
run.loop(step, steps=10)
"""


def test_a_blocking_call_of_the_program_ends_its_process_as_a_loss(control: Controller) -> None:
    c = control
    script = c.directory / "hangs.py"
    script.write_text(HANGS)
    a, b = start(c, script, count=2)
    c.form([a, b])
    c.until(lambda: "calls" in c.workers[a].log.read_text(), "it waits for the other")
    c.kill(b)
    port, c.members = c.prepare([a]), [a]
    c.commit([a], port, abandon=True)
    c.until(lambda: c.workers[a].returncode == -signal.SIGTERM, "ended as a loss")
    assert "BFT-1444" in c.workers[a].log.read_text()


MISTAKEN = """\
import numpy as np
from bftrainer.elastic import mpi
run = mpi.Run(replicated={"x": np.zeros(1)})
run.loop(lambda run: run.comm.Bcast(np.zeros(1), root=99), steps=5)
"""


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (MISTAKEN, "BFT-1410", "root"),
        (MISTAKEN.replace("np.zeros(1)}", "b'fixed'}"), "BFT-1443", "read-only"),
    ],
)
def test_a_mistake_of_the_program_is_a_failure_and_no_loss(
    control: Controller, text: str, code: str, words: str
) -> None:
    script = control.directory / "mistaken.py"
    script.write_text(text)
    (a,) = control.start(script)
    if code == "BFT-1410":
        control.warm([a])
        control.commit([a], control.prepare([a]))
    failed = control.failed(a)
    assert failed.code == code
    assert words in failed.cause
