"""Turns a forked process into a worker, runs the user's script in it and ends it.

The template calls ``run_worker`` with the worker's configuration and channel; it never returns.
The script's output goes to the log and its end is the exit status; if it raised, ``Failed`` is
reported and the traceback is in the log.

The main thread of the script has unlimited time; what it leaves behind (threads, pools, exit
handlers) has ``GRACE_S``. Children in the worker's process group end with it.

Under the start methods spawn and forkserver of ``multiprocessing`` each child imports the main
module first. A script without ``if __name__ == "__main__"`` trains there again, until Python
refuses to start children of the child; its parent learns only that the child has ended. So the
child leaves a mark with the worker.
"""

from __future__ import annotations

import ast
import atexit
import errno
import gc
import glob
import importlib
import io
import linecache
import multiprocessing
import os
import re
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bftrainer.elastic.process import control as control_module
from bftrainer.elastic.process import side_threads
from bftrainer.elastic.script import own_sharding
from bftrainer.ground.errors import ElasticError, sharded
from bftrainer.ground.fields import shortened
from bftrainer.ground.main_module import first_path, run_main
from bftrainer.ground.ports import keep_to_device_of
from bftrainer.ground.process import die_with_parent
from bftrainer.ground.protocol import BY_AGENT, TELLS_PLACE, Failed, WorkerConfig
from bftrainer.ground.regular_file import check_directory, open_log, why

UNGUARDED = "BFT_UNGUARDED"  # where a child leaves its mark
_FULL = (errno.ENOSPC, errno.EDQUOT)
_RUNTIME = ("bftrainer.elastic.", "bftrainer.ground.")
LOADER_END_S = 1.0  # from a broken connection to the end of the process that held it
GRACE_S = 10.0  # for threads and exit handlers
FLUSH_S = 1.0  # for flushing files, when a thread may hold a stream's lock
NEIGHBOUR_S = 30.0  # for the agent to see that a worker of the node has ended
MOST_SAID = 500  # characters of an exception's text
SPENT_LOGS = "BFT_SPENT_LOGS"  # log files of failed attempts, in the directory of ours
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_RENDEZVOUS = "torch.distributed.rendezvous"
_OF_GLOO = re.compile(r"\[[^\]]{0,200}gloo[^\]]{0,200}\]")  # as its messages begin
# Of others, though a script's directory may hold them.
_OTHERS = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"))
_SEE_LOG = "What it printed is in the worker's log."
_LESS_MEMORY = (
    "Let shares shrink by a larger minimum of --nodes (global batch), cut them into passes by"
    " max_per_worker, or shard the model over more --workers-per-node. 'bftrainer profile' tells"
    " from how many nodes on it fits."
)
# Modules that cut a model's parameters into pieces for the members of a process group.
_SHARDING = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.device_mesh",
)
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun
_NO_GROUP = "Default process group has not been initialized"


class GuardFile:
    """A file without a name, of this worker, that children can reach."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("bft-unguarded")
        os.environ[UNGUARDED] = f"/proc/{os.getpid()}/fd/{self._fd}"

    @property
    def is_set(self) -> bool:
        """Return whether a child has run the script as far as its training loop."""
        return os.fstat(self._fd).st_size > 0


def require_main_guard() -> None:
    """Go on only if this process is not a child that is importing the main module.

    Raises:
        ElasticError: BFT-1428.
    """
    if not getattr(multiprocessing.current_process(), "_inheriting", False):  # as Python asks
        return
    if path := os.environ.get(UNGUARDED):
        with suppress(OSError):
            Path(path).write_bytes(b"x")
    raise unguarded()


def unguarded() -> ElasticError:
    """Return BFT-1428."""
    return ElasticError(
        "BFT-1428",
        "Processes that the script starts (a DataLoader's, by the start method spawn or forkserver)"
        " run the script again, because it has no main guard.",
        'Put all but imports and definitions under: if __name__ == "__main__". Or let the loader'
        ' fork: multiprocessing_context="fork".',
    )


def unset(problem: NameError) -> ElasticError:
    """Return BFT-1449: the error of a variable that only the loops of a complete run would set."""
    error = ElasticError(
        "BFT-1449",
        f"The script uses after its loops what only the loops set ({problem}), and this run was"
        " complete when it started, so that there was nothing left to loop over.",
        "Give it a value before the loops, keep it in extra (elastic.Value), or compute it anew"
        " after them. To train on, ask for more --epochs, --samples or --steps.",
    )
    return error.with_traceback(problem.__traceback__)


def _is_set_elsewhere(problem: NameError) -> bool:
    """Return whether the code that lacks a variable sets it somewhere: else it is a slip."""
    if isinstance(problem, UnboundLocalError):
        return True
    frame, _ = _frames(problem)[-1]
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except (SyntaxError, ValueError):  # it is not a file any more
        return False
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return any(name.id == problem.name and isinstance(name.ctx, ast.Store) for name in names)


def leave(status: int) -> NoReturn:
    """End as Python does, without the teardown that native threads may hang in."""
    flush_output()
    threading.Thread(target=_end_late, args=(status,), name="bft-ending", daemon=True).start()
    try:
        # Ends pools, then joins threads: in the other order they wait for ever.
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as Python does
    except BaseException:  # noqa: BLE001 - as Python does
        traceback.print_exc()
    atexit.unregister(side_threads.await_ends)  # os._exit ends them where they are
    # os._exit below would skip exit handlers.
    atexit._run_exitfuncs()  # noqa: SLF001 - the only way to run them by hand
    _flush_files()
    os._exit(status)


def flush_output() -> None:
    """Flush stdout and stderr, unless the script has closed them."""
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)


def _flush_files() -> None:
    flush_output()
    for thing in gc.get_objects():
        if type(thing) in _BUFFERED:  # isinstance would ask objects that pretend
            _flush(thing)


def _flush(stream: object) -> None:
    with suppress(Exception):  # closed, None, a full disk: cannot be reported any more
        stream.flush()  # type: ignore[attr-defined]


def _end_late(status: int) -> None:
    """End the process after ``GRACE_S`` and print what was still running."""
    time.sleep(GRACE_S)
    text = f"bftrainer: killed {_who()}, still running {GRACE_S:.0f} s after the script's end."
    # Not through sys.stderr: a stuck thread may hold its lock.
    os.write(2, f"{text}\n".encode())
    last = threading.Thread(target=_flush_files, name="bft-last-words", daemon=True)
    last.start()
    last.join(FLUSH_S)
    os._exit(status)


def _who() -> str:
    main, present = threading.main_thread(), threading.current_thread()
    frames = sys._current_frames()  # noqa: SLF001 - the only way to see other threads
    threads = [t for t in threading.enumerate() if not (t.daemon or t in (main, present))]
    names = [f"thread {t.name!r}{_place_of(frames.get(t.ident or 0))}" for t in threads]
    return ", ".join(names) or f"an exit handler{_place_of(frames.get(main.ident or 0))}"


def _place_of(frame: object) -> str:
    stack = traceback.extract_stack(frame)  # type: ignore[arg-type]  # a frame, or None
    if frame is None or not stack:
        return ""
    return f" in {stack[-1].name} ({stack[-1].filename}, line {stack[-1].lineno})"


def run_worker(config: WorkerConfig, channel_fd: int, parent: int) -> NoReturn:
    """Run the script of ``config`` as one worker, then exit with its status."""
    os.setsid()
    die_with_parent()
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    control = control_module.start(config, socket.socket(fileno=channel_fd))
    serve(config, control, lambda: seed_alike(config.seed))


def seed_alike(seed: int) -> None:
    """Seed torch, ``random`` and numpy as in every other worker of the trainer.

    What a script draws before its loop must be the same everywhere, also after a restart: the
    split of its data, a vocabulary, weights. A script that seeds itself changes nothing of that.
    """
    from bftrainer.elastic.state.state import BEFORE_SCRIPT, seed_everything  # noqa: PLC0415 - torch

    with suppress(Exception):  # it is missing, or broken
        importlib.import_module("numpy.random")  # before it is seeded, if torch has not
    seed_everything(seed, BEFORE_SCRIPT)


def serve(
    config: WorkerConfig, control: control_module.Control, prepare: Callable[[], object] = bool
) -> NoReturn:
    """Act as the worker of ``config``: ``prepare``, run the script, exit with its status.

    Errors of ``prepare`` are reported like those of the script.
    """
    try:
        _enter_environment(config)
    except OSError as problem:
        control.send(
            Failed(
                code="BFT-1411",
                cause=f"The worker could not be set up: {why(problem)}.",
                next_step="Check working directory, checkpoint directory and log on the node.",
            )
        )
        os._exit(1)
    status = _run_script(config, control, prepare)
    leave(status)


def _enter_environment(config: WorkerConfig) -> None:
    os.environ.update(dict(config.environment))
    keep_to_device_of(config.address)
    os.environ["BFT_CHECKPOINT_DIR"] = config.checkpoint_dir  # for a script's own results
    with suppress(FileNotFoundError):
        check_directory(config.checkpoint_dir)
    os.chdir(config.cwd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if config.log_path:
        # Not in the daemon: this needs the user's rights and may hang.
        write_to(config.log_path)
    remove_spent_logs(config.log_path, os.environ.pop(SPENT_LOGS, ""))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # typed as TextIO
    threads = dict(config.environment).get("OMP_NUM_THREADS", "")
    if "torch" in sys.modules:  # imported by the template
        import torch  # noqa: PLC0415

        if threads.isdecimal() and int(threads) > 0:
            # OpenMP read the variable when the template imported torch.
            torch.set_num_threads(int(threads))
    sys.argv = [config.script, *config.args]
    sys.path.insert(0, first_path(config.script))


def write_to(log_path: str) -> None:
    """Append all output of this process to a file."""
    log = open_log(log_path)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def remove_spent_logs(log_path: str, names: str) -> None:
    """Remove logs of failed attempts, of all workers of each node."""
    directory = Path(log_path).parent
    for name in filter(None, names.split(":")):
        stem = glob.escape(Path(name).stem)
        for path in (*directory.glob(f"{stem}.log"), *directory.glob(f"{stem}-*.log")):
            with suppress(OSError):  # removed by another worker
                path.unlink()


def _run_script(
    config: WorkerConfig, control: control_module.Control, prepare: Callable[[], object]
) -> int:
    guard = GuardFile()
    try:
        prepare()
        status = status_of(config.script)
        if status:
            cause = f"The script ended itself with status {status}."
            control.send(Failed(code="BFT-1410", cause=cause, next_step=_SEE_LOG))
            return status
        control.script_ended()
    except SystemExit:  # all ranks but the first end with the run
        return 0
    except BaseException as problem:  # noqa: BLE001 - whatever the user's script raises
        if _is_of_ended_loader(problem):
            control_module.end_as_loss("processes of its DataLoader were ended by SIGTERM")
        if _is_of_neighbour(problem):
            if control.on_neighbour_lost is not None:
                control.on_neighbour_lost()  # other nodes need not wait for the agent
            time.sleep(NEIGHBOUR_S)  # if it has ended, the agent ends us: a loss and no failure
        if isinstance(problem, NameError) and control.was_complete and _is_set_elsewhere(problem):
            problem = unset(problem)
        failed = _failure_of(unguarded() if guard.is_set else problem)
        if dict(config.environment).get(TELLS_PLACE) == BY_AGENT:
            failed = replace(failed, place=place_of(problem, config.script))
        control.send(failed)
        with suppress(OSError):  # the log's disk is full
            traceback.print_exc()
        return 1
    return 0


def _is_of_neighbour(problem: BaseException | None) -> bool:
    """Return whether a collective of a sharded model failed, as it does when a neighbour ends."""
    shards = sys.modules.get("bftrainer.elastic.network.shards")
    while problem is not None and shards is not None and shards.has_neighbours():
        name, text = type(problem).__name__, str(problem)
        if isinstance(problem, RuntimeError) and (name.startswith("Dist") or _OF_GLOO.match(text)):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _is_of_ended_loader(problem: BaseException | None) -> bool:
    """Return whether torch tells of a DataLoader's process that SIGTERM has ended.

    A batch system sends it to all processes of a pilot, in any order. What such a process sent last
    is fetched from it, so that a connection may break before the kernel tells of its end.
    """
    while problem is not None:
        if isinstance(problem, RuntimeError) and _tells_of_sigterm(problem):
            return True
        if isinstance(problem, OSError | EOFError) and _is_fetching(problem):
            return _soon_ends_a_loader()
        problem = problem.__cause__ or problem.__context__
    return False


def _tells_of_sigterm(problem: RuntimeError) -> bool:
    text = str(problem)
    return text.startswith("DataLoader worker (pid ") and "signal: Terminated" in text


def _is_fetching(problem: BaseException) -> bool:
    fetch = f"torch{os.sep}utils{os.sep}data{os.sep}dataloader.py"
    return any(frame.f_code.co_filename.endswith(fetch) for frame, _ in _frames(problem))


def _soon_ends_a_loader() -> bool:
    from bftrainer.elastic.script import torch_compat  # noqa: PLC0415 - torch is imported already

    until_s = time.monotonic() + LOADER_END_S
    try:
        while time.monotonic() < until_s:
            torch_compat.raise_for_lost_loader()
            time.sleep(0.01)  # torch's handler of SIGCHLD may raise here
    except RuntimeError as told:
        return _tells_of_sigterm(told)
    return False


def status_of(script: str) -> int:
    """Run a script; return its exit status."""
    try:
        run_main(script)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    return 0


def _failure_of(problem: BaseException) -> Failed:
    if type(problem).__name__ == "OutOfMemoryError" and "torch" in sys.modules:
        from bftrainer.elastic.network import device  # noqa: PLC0415 - imports torch

        if device.is_used():
            others_fault = device.memory_held(device.current())
            problem = others_fault or problem
    if isinstance(problem, ElasticError):
        return Failed(code=problem.code, cause=problem.cause, next_step=problem.next_step)
    modules = {str(frame.f_globals.get("__name__", "")) for frame, _ in _frames(problem)}
    if explanation := own_sharding.explained(problem, modules):
        return _failure_of(explanation)
    name, text = type(problem).__name__, shortened(str(problem), MOST_SAID)
    if _expects_torchrun(problem):
        if any(f.f_globals.get("__name__", "").startswith(_SHARDING) for f, _ in _frames(problem)):
            return _failure_of(sharded("by FSDP or as DTensor"))
        return Failed(
            code="BFT-1424",
            cause=f"The script expects to be started by torchrun ({name}: {text}).",
            next_step="Leave out init_process_group and DistributedDataParallel, or make a group"
            ' of one: init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,'
            " world_size=1); or submit it with --runtime command. See docs/howto/train-pytorch.md.",
        )
    return _unexpected(problem, f"{name}: {text}")


def _unexpected(problem: BaseException, words: str) -> Failed:
    """Return the failure of what nobody raised as an error with a code."""
    if isinstance(problem, OSError) and problem.errno in _FULL:
        return Failed(
            code="BFT-1455",
            cause=f"The script met a full disk ({words}).",
            next_step="Make room there, or name places on another disk (--checkpoint-dir); the"
            " script need not change.",
        )
    if _is_ours(problem):
        return Failed(
            code="BFT-1456",
            cause=f"bftrainer failed in the script's process ({words}).",
            next_step="If docs/reference/python-api.md allows the call that the traceback in the"
            " worker's log begins with, this is a defect of bftrainer: report it with that log.",
        )
    cause, is_memory = f"The script raised {words}.", type(problem).__name__ == "OutOfMemoryError"
    next_step = _LESS_MEMORY if is_memory else _SEE_LOG
    return Failed(code="BFT-1410", cause=cause, next_step=next_step)


def _is_ours(problem: BaseException) -> bool:
    """Return whether code of bftrainer raised it, and no code of the script or a library.

    Compiled code has no frame; that of mpi4py or torch is told by the error's own class.
    """
    frames = _frames(problem)
    if not frames or isinstance(problem, ImportError | MemoryError):
        return False
    raiser = type(problem).__module__.partition(".")[0]
    if raiser not in ("builtins", "bftrainer") or type(problem).__name__ == "OutOfMemoryError":
        return False
    frame, _ = frames[-1]
    return str(frame.f_globals.get("__name__", "")).startswith(_RUNTIME)


def place_of(problem: BaseException, script: str) -> str:
    """Return where the script's own code raised it or called what did, "file:line"; "": nowhere."""
    places = [(frame.f_code.co_filename, line) for frame, line in _frames(problem)]
    if isinstance(problem, SyntaxError):
        places.append((problem.filename or "", problem.lineno or 0))
    home = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - as sys.path has it
    for file, line in reversed(places):
        is_others = file.startswith(_OTHERS) or "-packages" + os.sep in file
        if file.startswith(os.path.join(home, "")) and not is_others:  # noqa: PTH118
            return f"{os.path.relpath(file, home)}:{line}"
    return ""


def _expects_torchrun(problem: BaseException) -> bool:
    if isinstance(problem, KeyError):
        return bool(problem.args) and problem.args[0] in _TORCHRUN
    if isinstance(problem, ValueError) and _NO_GROUP in str(problem):
        return True
    frames = _frames(problem)
    if not frames:
        return False
    frame, _ = frames[-1]
    return bool(frame.f_globals.get("__name__") == _RENDEZVOUS)


def _frames(problem: BaseException) -> list[tuple[FrameType, int]]:
    return list(traceback.walk_tb(problem.__traceback__))
