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
from bftrainer.batch import process
from bftrainer.elastic.checkpoints.origin_check import CONTINUE
from bftrainer.elastic.process.store import StoreClient
from bftrainer.ground.protocol import Commit, Entered, Interrupted, Progress
from tests.elastic.controller import Controller
from tests.elastic.mpi_workers import MpiWorkers

EXAMPLES = Path(trainers.examples.__file__).parent
SGD, HEAT = EXAMPLES / "mpi_sgd.py", EXAMPLES / "mpi_heat.py"
BATCH = 24
ENDLESS = 1_000_000  # steps: nothing is over before the test has it end
TO_SOLVE = 100  # iterations after which what is left of the error is smaller than TOLERANCE
TOLERANCE = 1e-9  # of the heat equation's solution, whose largest value is about 0.01


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Controller]:
    with MpiWorkers(tmp_path) as workers, Controller(tmp_path, workers) as controller:
        yield controller


def start(c: Controller, script: Path, *args: object, count: int = 3) -> list[str]:
    # A trainer's arguments never change; here the one that is resumed gets others.
    ways = {"BFT_TEST_DIR": str(c.directory), "OMP_NUM_THREADS": "1", CONTINUE: "arguments"}
    ids = c.start(
        script,
        [str(a) for a in args],
        count=count,
        environment=tuple(ways.items()),
        checkpoint_interval_s=600.0,
    )
    c.warm(ids)
    return ids


def goes_on(c: Controller) -> None:
    """Wait for a report of a step that was not reached when this was called."""
    first = c.workers[c.members[0]]

    def step() -> int:
        return max(m.step for m in first.said if isinstance(m, Progress | Entered))

    before = step()
    c.until(lambda: step() > before + 2, "more steps")


def form(c: Controller, members: list[str], *, abandon: bool = False) -> list[Entered]:
    """Form a generation as the daemon does: again when a member says it came to nothing."""
    concerned = list(dict.fromkeys([*c.members, *members]))
    c.commit(members, c.prepare(members), abandon=abandon)

    def have(kind: type[Entered | Interrupted], ids: list[str]) -> list[bool]:
        key = (c.generation, c.attempt)
        return [any((m.generation, m.attempt) == key for m in c.workers[i].all(kind)) for i in ids]

    def decided() -> bool:
        return any(have(Interrupted, members)) or all(have(Entered, members))

    while True:
        c.until(decided, f"an outcome of {c.generation}.{c.attempt}")
        if not any(have(Interrupted, members)):
            return c.entered(members)
        port = c.prepare(members, is_retry=True)
        c.members = concerned  # who was to leave hears of it, too
        c.commit(members, port, abandon=True)


def form_without_answer_of(c: Controller, members: list[str], *, stopped: str) -> list[Entered]:
    """Form a generation without a member that hears nothing any more."""
    c.members = [m for m in c.members if m != stopped]
    return form(c, members, abandon=True)


def has_left(c: Controller, worker_id: str) -> None:
    """Wait for the end of one who is no member any more; if parting failed it is told to."""
    worker = c.workers[worker_id]
    c.until(lambda: worker.returncode is not None or worker.all(Interrupted), "it leaves")
    if worker.returncode is None:
        c.stop(worker_id)
    assert worker.returncode == 0


def dies(c: Controller, worker_id: str) -> None:
    """Kill a worker; wait until it is gone."""
    c.kill(worker_id)
    c.until(lambda: c.workers[worker_id].returncode is not None, "killed")


def say(c: Controller, ids: list[str], word: str, known: dict[str, int]) -> None:
    """Wait until all have printed a word, after as many characters as were known."""
    c.until(lambda: all(word in c.workers[i].log.read_text()[known[i] :] for i in ids), word)


def comes_back(c: Controller, worker_id: str) -> None:
    """Let a stopped worker go on and wait until it does, and the others after that."""
    worker = c.workers[worker_id]
    known = len(worker.said)
    c.kill(worker_id, signal.SIGCONT)
    c.until(lambda: len(worker.said) > known + 1, "it lives")
    goes_on(c)


def finish(c: Controller, script: Path, option: str, out: Path, *, more: int = 20) -> int:
    """Park, and let a fresh member do some steps more; return how many there were in all."""
    c.park()
    [saved] = c.saved()
    n_steps = saved.step + more
    last = start(c, script, option, n_steps, "--out", out, count=1)
    assert [one.step for one in form(c, last)] == [saved.step]
    c.finished(last)
    return n_steps


def at_meeting(commit: Commit, worker_id: str) -> None:
    """Wait until a member has come to where the members of a generation meet."""
    prefix = f"{commit.generation}.{commit.attempt}.{commit.token}"
    store = StoreClient(commit.store_host, commit.store_port, commit.token, 60)
    store.get(f"{prefix}/here/{worker_id}")
    store.close()


def assert_all_samples_once(path: Path, n_steps: int) -> None:
    done = json.loads(path.read_text())
    n_samples = n_steps * BATCH
    assert (done["step"], done["samples"]) == (n_steps, n_samples)
    assert done["index_sum"] == n_samples * (n_samples - 1) // 2


def test_members_join_leave_and_die_and_every_sample_is_used_once(control: Controller) -> None:
    c, out = control, control.directory / "done.json"
    a, b, d, e = start(c, SGD, "--steps", ENDLESS, "--pause", 0.02, count=4)
    form(c, [a, b])
    goes_on(c)
    form(c, [a, b, d])
    goes_on(c)
    entered = form(c, [b, d, e])  # the first rank leaves and another comes, at one boundary
    assert all(one.step > 0 for one in entered)
    has_left(c, a)
    goes_on(c)
    c.kill(b)
    c.until(lambda: c.workers[b].returncode == -signal.SIGKILL, "killed")
    assert len(form(c, [d, e], abandon=True)) == 2
    goes_on(c)
    c.kill(d, signal.SIGSTOP)  # a node that was cut off: silent, its sockets open
    form_without_answer_of(c, [e], stopped=d)
    goes_on(c)
    comes_back(c, d)  # what it sends now ends calls of the old generation, too late
    c.kill(d, signal.SIGKILL)
    assert_all_samples_once(out, finish(c, SGD, "--steps", out))


@pytest.mark.long
def test_nothing_of_a_worker_stays_in_the_memory_of_its_node(control: Controller) -> None:
    c = control
    ids = start(c, SGD, "--steps", ENDLESS, "--pause", 0.02, count=2)
    form(c, ids)
    goes_on(c)
    for worker_id in ids:
        maps = Path(f"/proc/{c.workers[worker_id].pid}/maps").read_text().splitlines()
        shared = [line for line in maps if "/dev/shm/" in line]
        assert shared
        assert all(line.endswith("(deleted)") for line in shared), shared


@pytest.mark.long
def test_a_joiner_that_dies_on_the_way_in_does_not_hold_up_the_others(control: Controller) -> None:
    c, out = control, control.directory / "done.json"
    a, b, d, e = start(c, SGD, "--steps", ENDLESS, "--pause", 0.02, count=4)
    form(c, [a, b])
    goes_on(c)
    port = c.prepare([a, b, d])
    c.kill(d)  # it will never come to the meeting
    at_meeting(c.commit([a, b, d], port), a)
    c.until(lambda: c.workers[d].returncode is not None, "killed")
    c.members = [a, b]
    assert len(form(c, [a, b, e], abandon=True)) == 3
    assert c.workers[a].all(Interrupted)
    goes_on(c)
    assert_all_samples_once(out, finish(c, SGD, "--steps", out))


@pytest.mark.long
def test_a_member_that_comes_back_spoils_nothing(control: Controller) -> None:
    c, out = control, control.directory / "done.json"
    a, b, d = start(c, SGD, "--steps", ENDLESS, "--pause", 0.01)
    form(c, [a, b, d])
    goes_on(c)
    c.kill(a, signal.SIGSTOP)
    form_without_answer_of(c, [b, d], stopped=a)
    comes_back(c, a)
    assert_all_samples_once(out, finish(c, SGD, "--steps", out))


def reference(directory: Path, iterations: int) -> np.ndarray:
    """Return the solution of a run of one member, started by hand."""
    path = directory / "reference.npy"
    argv = (sys.executable, str(HEAT), "--iterations", str(iterations), "--out", str(path))
    done = process.run(argv, timeout_s=300)
    assert done.is_ok, done.stderr
    found: np.ndarray = np.load(path)
    return found


@pytest.mark.long
def test_a_domain_that_is_cut_anew_and_loses_a_part_gives_the_same_solution(
    control: Controller,
) -> None:
    c, out = control, control.directory / "solution.npy"
    a, b, d = start(c, HEAT, "--iterations", ENDLESS, "--pause", 0.05)
    form(c, [a])
    goes_on(c)
    form(c, [a, b, d])
    goes_on(c)
    form(c, [b, d])
    goes_on(c)
    dies(c, b)  # with half of the domain: the rest has a copy of it
    (entered,) = form(c, [d], abandon=True)
    assert entered.step > 0
    assert not entered.resumed_from
    iterations = finish(c, HEAT, "--iterations", out, more=TO_SOLVE)
    difference = np.abs(np.load(out) - reference(c.directory, iterations)).max()
    assert difference < TOLERANCE * 0.01


@pytest.mark.long
def test_a_parked_domain_resumes_from_its_file_at_another_size(control: Controller) -> None:
    c, out = control, control.directory / "solution.npy"
    form(c, start(c, HEAT, "--iterations", ENDLESS, "--pause", 0.03))
    goes_on(c)
    c.park()
    [saved] = c.saved()
    iterations = saved.step + TO_SOLVE
    e, f = start(c, HEAT, "--iterations", iterations, "--out", out, count=2)
    entered = form(c, [e, f])
    assert {one.step for one in entered} == {saved.step}
    assert entered[0].resumed_from == saved.path
    c.finished([e])
    difference = np.abs(np.load(out) - reference(c.directory, iterations)).max()
    assert difference < TOLERANCE * 0.01


REDUCES = """\
import numpy as np
from mpi4py import MPI
from bftrainer.elastic import mpi
def check(run, send, expected, op=None):
    got = np.full_like(send, 77)
    run.comm.Allreduce(send, got, op)
    assert got.dtype == expected.dtype and np.array_equal(got, expected), (got, expected)
def step(run):
    n, rank = run.size, run.rank
    for length in (1, 2, 511, 513, 10_007):
        mine = np.arange(length)
        check(run, (mine + rank) * 1.0, (n * mine + n * (n - 1) // 2) * 1.0)
        check(run, (mine + rank).astype("i4"), (mine + n - 1).astype("i4"), MPI.MAX)
        check(run, mine + rank * 1j, n * mine + n * (n - 1) // 2 * 1j)  # as MPI does it
    square = np.full((30, 40), rank + 1.0)
    check(run, square, np.full((30, 40), n * (n + 1) / 2))
    in_place = np.full(600, 1.0)
    run.comm.Allreduce(MPI.IN_PLACE, in_place)
    assert (in_place == n).all()
    for length in (3, 3000):  # the order is that of the ranks
        check(run, np.full(length, rank), np.full(length, int("".join(map(str, range(n))))), CHAIN)
def chain(left, right, _type):
    a, b = np.frombuffer(left, "i8"), np.frombuffer(right, "i8")
    b[:] = a * 10 ** (np.char.str_len(b.astype(str))) + b
CHAIN = MPI.Op.Create(chain, commute=False)
run = mpi.Run(replicated={"x": np.zeros(1)})
run.loop(step, steps=3)
"""


@pytest.mark.long
def test_a_reduction_is_what_mpi_says(control: Controller) -> None:
    c = control
    script = c.directory / "reduces.py"
    script.write_text(REDUCES)
    members = start(c, script, count=4)
    form(c, members)
    assert len(c.finished(members)) == 4


HOLDS = """\
import time
from pathlib import Path
import numpy as np
from bftrainer.elastic import mpi
wanted = np.zeros(10_000)  # agreed on in the step before
def step(run):
    if wanted[0]:
        wanted[:] = 0
        print("holds", flush=True)
        while HOLD.exists():
            time.sleep(0.002)
        print("reduces", flush=True)
    run.comm.Allreduce(np.full(10_000, float(HOLD.exists())), wanted)
    time.sleep(0.005)
HOLD = Path(__file__).with_name("hold")
run = mpi.Run(replicated={"x": np.zeros(1)})
run.loop(step, steps=1_000_000)
"""


@pytest.mark.long
def test_those_who_reduce_with_a_dead_member_live_on(control: Controller) -> None:
    c = control
    script, hold = c.directory / "holds.py", c.directory / "hold"
    script.write_text(HOLDS)
    members = start(c, script)
    form(c, members)
    for rank in (0, 1, 2):
        goes_on(c)
        known = {i: len(c.workers[i].log.read_text()) for i in members}
        victim = members[rank]
        rest = [i for i in members if i != victim]
        hold.touch()
        say(c, members, "holds", known)
        dies(c, victim)
        hold.unlink()
        say(c, rest, "reduces", known)
        form(c, rest, abandon=True)
        assert [c.workers[i].returncode for i in rest] == [None, None]
        members = [*rest, *start(c, script, count=1)]
        form(c, members)


HANGS = """\
import signal
import time
import numpy as np
from bftrainer.elastic import mpi
signal.signal(signal.SIGTERM, lambda *_: None)  # would never run: Python is not back from MPI
def step(run):
    if run.rank == 1:
        time.sleep(3600)
    print("calls", flush=True)
    run.comm.raw.Allreduce(np.ones(1), np.empty(1))
run = mpi.Run(replicated={"x": np.zeros(1)})
run.loop(step, steps=10)
"""


@pytest.mark.long
def test_a_blocking_call_of_the_program_ends_its_process_as_a_loss(control: Controller) -> None:
    c = control
    script = c.directory / "hangs.py"
    script.write_text(HANGS)
    a, b = start(c, script, count=2)
    form(c, [a, b])
    c.until(lambda: "calls" in c.workers[a].log.read_text(), "it waits for the other")
    c.kill(b)
    port, c.members = c.prepare([a]), [a]
    c.commit([a], port, abandon=True)
    c.until(lambda: c.workers[a].returncode == -signal.SIGTERM, "ended as a loss")
    assert "BFT-1444" in c.workers[a].log.read_text()


STUCK = """\
import threading
import time
import numpy as np
from bftrainer.elastic import mpi
sent = []  # when
def send_for_ever(lost):  # keeps MPI's lock as soon as it has noticed that nobody is there
    while True:
        sent.append(time.monotonic())
        lost.Isend(np.zeros(10), 1)
        lost.Iprobe()
        time.sleep(0.01)
def step(run):
    if run.size == 2:
        run.lost = run.comm.raw
    elif not sent:
        threading.Thread(target=send_for_ever, args=[run.lost], daemon=True).start()
    elif time.monotonic() - sent[-1] > 1:
        print("stuck", flush=True)
    run.comm.Allreduce(np.ones(1), np.empty(1))
    time.sleep(0.01)
run = mpi.Run(replicated={"x": np.zeros(1)})
run.loop(step, steps=1000000)
"""


@pytest.mark.long
def test_a_member_whose_mpi_does_not_answer_any_more_ends_as_a_loss(control: Controller) -> None:
    c = control
    script = c.directory / "stuck.py"
    script.write_text(STUCK)
    a, b, d = start(c, script)
    form(c, [a, b])
    goes_on(c)
    dies(c, b)
    form(c, [a], abandon=True)
    c.until(lambda: "stuck" in c.workers[a].log.read_text(), "MPI hangs, the program does not")
    c.commit([a, d], c.prepare([a, d]))
    c.until(lambda: c.workers[a].returncode is not None, "ended")
    assert c.workers[a].returncode == -signal.SIGTERM
    c.members = [d]
    assert len(form(c, [d], abandon=True)) == 1


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
    assert failed.code == code, failed
    assert words in failed.cause
