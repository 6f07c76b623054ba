"""Keeps one worker: its process, its descendants and its temporary files.

A subreaper (prctl(2), PR_SET_CHILD_SUBREAPER) adopts the orphans below it, so nothing leaves the
tree of its descendants. Each worker has one of its own, its keeper; above it, template and agent
adopt the processes of a keeper that was killed. Works for ordinary users, without cgroups.

When the worker has ended, the keeper kills and reaps all its descendants and removes their files,
before the end is reported. It has no other work. The worker dies with its keeper, and the keeper
ends the worker when its own parent has died.

Workers end by ``os._exit`` or a signal, together with the children that load their data, so
``multiprocessing`` does not clean up and every worker would leave a directory in the node's
temporary directory. So each worker gets a directory that its keeper removes, or the agent if the
keeper was killed, too.

Used by ``template`` and the agent. Standard library only.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from bftrainer.ground.process import die_with_parent

LOOK_S = 0.001  # between two looks whether all have ended
LAST_S = 5.0  # for processes that were killed to end; some wait for a file system
NOT_OURS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the kernel has it
_OF_TORCH = re.compile(r"torch_(\d{1,10})_\d+_\d+\Z", re.ASCII)  # the first number is a pid
_RANDOM = ("nccl-", "mpich_shm_")  # names of NCCL and MPICH begin so, their ends are random
_IN_MAPS = re.compile(rb"/dev/shm/(?:nccl-|mpich_shm_)\S+", re.ASCII)
_BLOCK, _SEMAPHORE = "psm_", "sem.mp-"  # as multiprocessing begins such names
_BEGAN_S = time.time()
_PR_SET_CHILD_SUBREAPER = 36
_MANAGER = b"torch_shm_manag\n"  # torch_shm_manager, where tensors are shared by file_system


def adopt() -> None:
    """Make this process the parent of the orphans among its descendants."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def end_below(pid: int, spared: Collection[int] = (), *, is_last: bool = True) -> set[int]:
    """SIGKILL all descendants of an adopting process; return their pids.

    A process that was sent the signal starts no other one, and whoever loses its parent moves up.
    So a look from below that meets nobody new was the last. Safe from any thread.

    Args:
        pid: the adopting process, which is left alone.
        spared: children that are left alone, with all below them.
        is_last: whether the node has to be empty. Else torch's managers of shared files are left to
            end, within 2 s: they remove files that nobody else knows.
    """
    tree = [pid]  # parents before their children
    met = {pid, *spared}

    def look_at(parent: int) -> None:
        newcomers = [child for child in children(parent) if child not in met]
        tree.extend(child for child in newcomers if is_last or not _cleans_up(child))
        met.update(newcomers)

    while True:
        first = len(tree)
        for parent in tree[::-1]:
            look_at(parent)
        for parent in itertools.islice(tree, first, None):  # it grows
            look_at(parent)
        if len(tree) == first:
            return set(tree[1:])
        # In one go: processes that end take the processor from us.
        for child in tree[first:]:
            with suppress(OSError):  # ended meanwhile, or runs as another user
                os.kill(child, signal.SIGKILL)


def sweep(spared: Collection[int] = (), *, limit_s: float = 0.0) -> set[int]:
    """SIGKILL and reap our descendants but ``spared`` children; return the pids.

    Repeats until none is left or the time is up: a process in the kernel may take long to end.
    """
    pids: set[int] = set()
    until_s = time.monotonic() + limit_s
    while killed := end_below(os.getpid(), spared, is_last=False):
        pids |= killed
        reap(spared)
        if time.monotonic() >= until_s:
            break
        time.sleep(LOOK_S)
    return pids


def reap(spared: Collection[int] = ()) -> None:
    """Reap the children that have ended, but not ``spared`` ones."""
    for pid in children(os.getpid()):
        if pid not in spared:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def children(pid: int) -> list[int]:
    """Return the children of a process, dead ones included; none if it has ended."""
    pids: list[int] = []
    threads = f"/proc/{pid}/task"
    with suppress(OSError):
        # Not with pathlib, which takes twice the time: a node waits for this.
        for thread in os.listdir(threads):  # noqa: PTH208
            with suppress(OSError), open(f"{threads}/{thread}/children", "rb", 0) as file:  # noqa: PTH123
                pids += map(int, file.read().split())
    return pids


def _cleans_up(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/comm", "rb", 0) as file:  # noqa: PTH123 - as above
        return file.read() == _MANAGER
    return False


def keep(worker: int, parent: int) -> tuple[int, set[int]]:
    """Wait for the worker, a child of ours, to end; end all that it leaves.

    Call ``adopt`` before it is started.

    Args:
        worker: its pid, which is also a process group.
        parent: the pid of our parent.

    Returns:
        Its status, ``-N`` for signal ``N``, and the pids of all that have ended with it.
    """

    def on_sigterm(_signum: int, _frame: object) -> None:
        if os.getppid() != parent:  # else the signal is for the whole pilot: the worker has it, too
            kill_group(worker)

    for number in NOT_OURS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_sigterm)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:  # it died before the line above
        kill_group(worker)
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_pid == worker:
            break
        if ended is not None:
            os.waitpid(ended.si_pid, 0)  # adopted, and has ended by itself
    kill_group(worker)  # before it is reaped: its pid is not reused until then
    _, status = os.waitpid(worker, 0)
    return os.waitstatus_to_exitcode(status), {worker} | sweep(limit_s=LAST_S)


def kill_group(pid: int) -> None:
    """SIGKILL a worker's process group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def temporary_place() -> Path:
    """Return the directory for temporary files.

    Not tempfile.gettempdir(): it caches our directory, while a trainer may set its own.
    """
    return Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - those below it are 0700


def own_place(pid: int) -> str:
    """Return the owner's name (``name_shared``) of a worker without a directory of its own."""
    return f"{temporary_place().name}-{pid}"


def node_place(member: str) -> Path:
    """Return the directory in which the workers of a node meet (``elastic.network.shards``)."""
    return temporary_place() / f"bft-node-{member}"


class Scratch:
    """The directories of one template's workers, by pid."""

    def __init__(self) -> None:
        # Short, because paths of Unix sockets below it are limited to 107 bytes.
        self._base = temporary_place()
        self._prefix = f"bft-{secrets.token_hex(4)}-"

    def of(self, pid: int) -> Path:
        """Return the directory of a worker; it may not exist."""
        return self._base / f"{self._prefix}{pid}"

    def use(self, pid: int) -> None:
        """In the worker: use its directory, here and in children; created on demand."""
        directory = self.of(pid)

        def get_temp_dir() -> str:
            directory.mkdir(mode=0o700, exist_ok=True)
            return str(directory)

        from multiprocessing import util  # noqa: PLC0415 - as above

        util.get_temp_dir = get_temp_dir
        name_shared(directory.name)


def name_shared(owner: str) -> None:
    """Have multiprocessing name blocks of shared memory and semaphores after this worker.

    Its children, too. By default the names are random. A Python that lacks what is set here names
    them as it likes, and they may stay.
    """
    from multiprocessing import process, shared_memory  # noqa: PLC0415 - as above

    vars(shared_memory)["_make_filename"] = lambda: f"/{_BLOCK}{owner}-{os.urandom(4).hex()}"
    vars(process.current_process())["_config"]["semprefix"] = f"/mp-{owner}"


def remove(directory: Path, pids: Collection[int]) -> None:
    """Remove a worker's directory, and what processes that were killed left in shared memory.

    These are files of torch. Each is named after the process that made it and unlinked at once,
    unless that is killed between the two.
    """
    shutil.rmtree(directory, ignore_errors=True)
    remove_shared(pids, directory.name)


def remove_shared(pids: Collection[int], scratch: str = "") -> None:
    """Remove files in shared memory that processes of ours have left.

    Args:
        pids: processes that have ended; torch's files are named after them.
        scratch: the ``owner`` of ``name_shared``, or its beginning.
    """
    prefixes: tuple[str, ...] = ()
    if scratch:
        prefixes = (f"{_BLOCK}{scratch}-", f"{_SEMAPHORE}{scratch}-")
    for file in _shared():
        of_torch = _OF_TORCH.match(file.name)
        if file.name.startswith(prefixes) or (of_torch and int(of_torch[1]) in pids):
            _unlink_own(file)


def remove_unmapped() -> None:
    """Remove NCCL's and MPICH's files of our user, made since we began, that no process has mapped.

    Their names are random, and needed only while it connects; who is killed then leaves them.
    Processes that hide what they map, such as ssh-agent, use neither. Slower than the others: the
    maps of all processes are read.
    """
    unclear = {os.fsencode(file): file for file in _shared() if file.name.startswith(_RANDOM)}
    if not unclear:
        return
    for name in os.listdir("/proc"):  # noqa: PTH208 - as ``children``
        with suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == os.getuid():  # noqa: PTH116 - as above
                with open(f"/proc/{name}/maps", "rb", 0) as file:  # noqa: PTH123
                    for mapped in _IN_MAPS.findall(file.read()):
                        unclear.pop(mapped, None)
    for unmapped in unclear.values():
        _unlink_own(unmapped, since_s=_BEGAN_S)


def _shared() -> list[Path]:
    try:
        return list(SHARED_MEMORY.iterdir())
    except OSError:
        return []


def _unlink_own(file: Path, since_s: float = 0.0) -> None:
    with suppress(OSError):
        status = file.lstat()
        if status.st_uid == os.getuid() and status.st_ctime > since_s:
            file.unlink()
