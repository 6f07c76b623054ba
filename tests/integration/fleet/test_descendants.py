"""What workers start ends with them, also in sessions of its own, and leaves no files."""

from __future__ import annotations

import fcntl
import mmap
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.elastic.process import worker_keeper
from bftrainer.fleet.wire.messages import Hello, KillWorker, Leave, Leaving, StartWorker, TellWorker
from bftrainer.ground.protocol import Commit, Member, to_body
from tests.integration.agent_harness import Daemon, Lab, in_lab, until, write_executable
from tests.support.processes import below, is_running

# A loader that starts a program and a fork in sessions of their own, whose parents are gone; a
# directory for the sockets of multiprocessing; a file as torch leaves that is killed too early.
WORKER = """
import multiprocessing as mp, multiprocessing.connection, os, subprocess, sys, threading, time
from pathlib import Path
from bftrainer.elastic.process import control
from bftrainer.ground import protocol

def here_is(pid):
    Path(f"{control.current().config.worker_id}-{pid}").touch()

def orphan(run):
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            here_is(os.getpid())
            run()
        os._exit(0)
    os.waitpid(child, 0)

def load():
    listener = mp.connection.Listener(family="AF_UNIX")
    Path(f"/dev/shm/torch_{os.getpid()}_1_0").touch()
    here_is(subprocess.Popen(["sleep", "601"], start_new_session=True, env={}).pid)
    orphan(lambda: os.execve("/bin/sleep", ["sleep", "602"], {}))
    here_is(os.getpid())
    time.sleep(603)

mp.get_context("fork").Process(target=load, daemon=True).start()
orphan(lambda: time.sleep(604))
here_is(os.getpid())
control.current().send(protocol.Warm(warm_up_s=0.5))
threading.Event().wait()
"""
LOADED = 5  # worker, loader, helper, two orphans


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())  # short: a Unix socket comes to lie below it
    monkeypatch.setenv("TMPDIR", str(path))
    yield path
    shutil.rmtree(path)


async def loaded(lab: Lab, daemon: Daemon, worker_id: str) -> set[int]:
    """Start a worker; return it and all its descendants."""
    daemon.send(lab.order(worker_id, lab.script("worker.py", WORKER)))

    def found() -> set[int]:
        return {int(mark.name.rpartition("-")[2]) for mark in lab.directory.glob(f"{worker_id}-*")}

    await until(lambda: len(found()) == LOADED, "all that it starts")
    return found()


PROGRAM = """
import os, subprocess, sys, time
from pathlib import Path
helper = subprocess.Popen(["sleep", "601"], start_new_session=True, env={})
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        Path(f"w1-{os.getpid()}").touch()
        time.sleep(602)
    os._exit(0)
for pid in (os.getpid(), helper.pid):
    Path(f"w1-{pid}").touch()
print("BFT ready", flush=True)
while not Path("over").exists():
    time.sleep(0.01)
sys.exit(int(sys.argv[1]))
"""


def running(pids: set[int]) -> set[int]:
    return {pid for pid in pids if is_running(pid)}


def files_of(pids: set[int], scratch: Path) -> list[Path]:
    shared = [f for pid in pids for f in Path("/dev/shm").glob(f"torch_{pid}_*")]
    return [*scratch.glob("bft-*/bft-*"), *shared]


def test_nothing_of_a_killed_worker_is_left_when_its_end_is_reported(
    tmp_path: Path, scratch: Path
) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        first = await loaded(lab, daemon, "w1")
        second = await loaded(lab, daemon, "w2")
        assert len(files_of(first | second, scratch)) == 4
        daemon.send(KillWorker(worker_id="w1"))
        end = await until(lambda: daemon.exited("w1"), "its end")
        assert end.returncode == -signal.SIGKILL
        assert running(first) == set()
        assert running(second) == second, "the other's are its own"
        assert len(files_of(first | second, scratch)) == 2

    in_lab(tmp_path, scenario)


@pytest.mark.parametrize(
    "how",
    ["told", *(pytest.param(h, marks=pytest.mark.long) for h in ("SIGTERM", "SIGTERM to all"))],
)
def test_a_pilot_leaves_nothing(tmp_path: Path, scratch: Path, how: str) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        pids = await loaded(lab, daemon, "w1")
        assert len(files_of(pids, scratch)) == 2
        everything = pids | below(agent.pid)
        if how == "told":
            daemon.send(Leave(reason="test"))
        elif how == "SIGTERM":
            agent.terminate()
        else:
            for pid in sorted(everything, reverse=True):  # loaders first
                os.kill(pid, signal.SIGTERM)
            agent.terminate()
        assert await lab.agent_ended() == 0
        await until(lambda: daemon.of(Leaving), "last words")
        await until(lambda: not running(everything), "all have ended")
        assert files_of(pids, scratch) == []

    in_lab(tmp_path, scenario)


LEAVES = """
import multiprocessing as mp, os, subprocess, sys, tempfile, threading
from multiprocessing import shared_memory
from pathlib import Path
from bftrainer.elastic.process import control
from bftrainer.ground import protocol
block = shared_memory.SharedMemory(create=True, size=64)
lock = mp.get_context("spawn").Lock()
nccl = Path(f"/dev/shm/nccl-{os.getpid()}")
mpich = Path(f"/dev/shm/mpich_shm_{os.getpid():x}_0")
nccl.touch()
mpich.touch()
places = [f"/dev/shm/{block.name}", f"/dev/shm/sem.{lock._semlock.name[1:]}", str(nccl), str(mpich)]
made = subprocess.run(["mktemp", "-d"], stdout=subprocess.PIPE, text=True, check=True).stdout
temporary = [made.strip(), tempfile.mkdtemp(), tempfile.mkstemp()[1]]
Path("left").write_text("\\n".join([*places, *temporary]))
control.current().send(protocol.Warm(warm_up_s=0.5))
threading.Event().wait()
"""


@pytest.mark.parametrize("how", ["worker", "pilot"])
def test_shared_memory_and_temporary_files_are_removed(
    tmp_path: Path, scratch: Path, how: str
) -> None:
    """Names of others stay: in use, or whose user may come back to them.

    NCCL's and MPICH's are looked for when a worker ends only: to learn whose they are takes, among
    all the processes of a machine of tests, longer than an agent that leaves may.
    """
    abandoned = scratch / "bft-0123abcd"
    abandoned.mkdir()
    (abandoned / "file").touch()
    locked = scratch / "bft-4567cdef"
    locked.mkdir()
    for directory in (abandoned, locked):
        os.utime(directory, (0, 0))

    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        daemon.send(lab.order("w1", lab.script("leaves.py", LEAVES)))
        await until(lambda: daemon.said("w1", "Warm"), "worker is up")
        left = [Path(line) for line in (lab.directory / "left").read_text().splitlines()]
        # NCCL's and MPICH's nobody has mapped: the agent of another test may remove them, too.
        assert [path for path in (*left[:2], *left[4:]) if not path.exists()] == []
        await until(lambda: not abandoned.exists(), "what a killed pilot left is removed")
        if how == "worker":
            daemon.send(KillWorker(worker_id="w1"))
            await until(lambda: daemon.exited("w1"), "it has ended")
            assert [path for path in left[:4] if path.exists()] == []
            assert is_running(agent.pid)
            return
        daemon.send(Leave(reason="test"))
        assert await lab.agent_ended() == 0
        assert [path for path in (*left[:2], *left[4:]) if path.exists()] == []
        for path in left[2:4]:
            path.unlink(missing_ok=True)
        kept = [name for name in os.listdir(scratch) if not name.startswith("torchinductor_")]  # noqa: PTH208 - in an async function
        assert kept == [locked.name]

    nccl = Path(f"/dev/shm/nccl-test-{os.getpid()}-{how}")
    block = shared_memory.SharedMemory(create=True, size=64)
    lock = multiprocessing.get_context("spawn").Lock()
    semaphore = Path(f"/dev/shm/sem.{lock._semlock.name[1:]}")  # type: ignore[attr-defined]
    fd = os.open(locked, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with nccl.open("wb+") as file:
            file.truncate(64)
            block.close()
            with mmap.mmap(file.fileno(), 64):
                in_lab(tmp_path, scenario)
            assert nccl.exists()
            assert semaphore.exists()
            assert Path(f"/dev/shm/{block.name}").exists()
    finally:
        os.close(fd)
        nccl.unlink()
        block.unlink()


SHARES = """
import threading, torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer.elastic.process import control
from bftrainer.ground import protocol
def share(_=0):
    torch.multiprocessing.set_sharing_strategy("file_system")
share()
data = TensorDataset(torch.randn(256, 8))
batches = iter(DataLoader(data, batch_size=8, num_workers=2, worker_init_fn=share))
kept = [next(batches) for _ in range(4)]
control.current().send(protocol.Warm(warm_up_s=0.5))
threading.Event().wait()
"""


@pytest.mark.long
def test_tensors_that_were_shared_by_files_are_removed(tmp_path: Path, scratch: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        script = lab.script("shares.py", SHARES)
        daemon.send(lab.order("w1", script, interpreter=sys.executable))
        await until(lambda: daemon.said("w1", "Warm"), "worker is up")
        pids = below(agent.pid)
        assert files_of(pids, scratch)
        assert managers(scratch)
        daemon.send(KillWorker(worker_id="w1"))
        await until(lambda: daemon.exited("w1"), "it has ended")
        await until(lambda: not files_of(pids, scratch), "no shared file")
        await until(lambda: not managers(scratch), "and no directory of its managers")

    in_lab(tmp_path, scenario)


def managers(scratch: Path) -> list[Path]:
    return list(scratch.glob("bft-*/torch-shm-dir-*"))


@pytest.mark.parametrize(
    "killed", ["keeper", *(pytest.param(k, marks=pytest.mark.long) for k in ("template", "agent"))]
)
def test_what_is_above_a_worker_may_be_killed(tmp_path: Path, scratch: Path, killed: str) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        pids = await loaded(lab, daemon, "w1")
        [template] = worker_keeper.children(agent.pid)
        [keeper] = worker_keeper.children(template)
        os.kill({"keeper": keeper, "template": template, "agent": agent.pid}[killed], 9)
        if killed == "agent":
            await until(lambda: not running(pids | {keeper, template}), "all have ended")
            await until(lambda: not files_of(pids, scratch), "their files are gone")
            return
        end = await until(lambda: daemon.exited("w1"), "its end")
        assert end.returncode == -signal.SIGKILL
        await until(lambda: not running(pids), "all have ended")
        assert files_of(pids, scratch) == []
        assert is_running(agent.pid)
        await loaded(lab, daemon, "w2")

    in_lab(tmp_path, scenario)


@pytest.mark.parametrize("runtime", ["command", "mpi"])
@pytest.mark.parametrize("how", [pytest.param("ends", marks=pytest.mark.long), "is killed"])
def test_nothing_of_a_program_is_left(tmp_path: Path, runtime: str, how: str) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        daemon.send(program(lab, runtime))
        if runtime == "command":
            await until(lambda: daemon.said("w1", "Warm"), "keeper is up")
            daemon.send(TellWorker(worker_id="w1", body=to_body(ALONE)))

        def found() -> set[int]:
            return {int(mark.name.rpartition("-")[2]) for mark in lab.directory.glob("w1-*")}

        pids = await until(lambda: found() if len(found()) == 3 else None, "all that it starts")
        if how == "is killed":
            daemon.send(KillWorker(worker_id="w1"))
        else:
            lab.script("over", "")
        await until(lambda: daemon.exited("w1"), "its end")
        await until(lambda: not running(pids), "all have ended")

    in_lab(tmp_path, scenario)


ALONE = Commit(
    generation=1,
    attempt=1,
    token="t",  # noqa: S106 - no secret
    members=(Member(worker_id="w1", rank=0, node="n1", address="127.0.0.1"),),
)


def program(lab: Lab, runtime: str) -> StartWorker:
    script = lab.script("program.py", PROGRAM)
    if runtime == "mpi":
        order = lab.order("w1", script)
        # For the agent this is a worker of mpi, whether MPI is installed or not.
        started = f'#!/bin/sh\ncd "{lab.directory}" && exec {sys.executable} "{script}" 3\n'
        interpreter = write_executable(lab.directory / "interpreter", started)
        mpi: dict[str, object] = {"interpreter": str(interpreter)}
        return order.model_copy(update={"program": "trainers.mpi", "options": mpi})
    order = lab.order(
        "w1", Path(sys.executable), args=(str(script), "3"), checkpoint_dir=str(lab.directory)
    )
    options: dict[str, object] = {
        "launch": "every", "stop_signal": "USR1", "save_signal": "none", "saved_status": 85,
        "grace_s": 20.0, "run": "t1@1.0",
    }  # fmt: skip
    return order.model_copy(update={"program": "trainers.command", "options": options})


def test_signals_that_were_ignored_at_the_start_are_heeded(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD)
    text = (
        "import signal, sys\n"
        f"how = [signal.getsignal(n) for n in {[int(n) for n in numbers]}]\n"
        "print(how == [signal.default_int_handler, *[signal.SIG_DFL] * 3])\n"
    )

    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            lab.start_agent()  # as nohup would
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        await until(lambda: daemon.of(Hello), "hello")
        daemon.send(lab.order("w1", lab.script("show.py", text)))
        await until(lambda: daemon.exited("w1"), "its end")
        assert (lab.directory / "w1.log").read_text().startswith("True")

    in_lab(tmp_path, scenario)


def test_a_process_that_starts_others_without_end_is_ended(tmp_path: Path) -> None:
    text = (
        "import os, sys\n"
        "from bftrainer.elastic.process import worker_keeper\n"
        "worker_keeper.adopt()\n"
        "if os.fork() == 0:\n"
        "    for _ in range(10_000):\n"
        "        os.setsid()\n"
        "        if os.fork():\n"
        "            os._exit(0)\n"
        "worker_keeper.sweep(limit_s=60.0)\n"
        "sys.exit(len(worker_keeper.children(os.getpid())))\n"
    )
    script = tmp_path / "chain.py"
    script.write_text(text)
    assert process.run([sys.executable, str(script)], timeout_s=300).is_ok
