"""The entry into a container: chooses the runtime on this machine and starts a program in an image.

Run by path, as ``python -I -S entry.py ORDER PROGRAM [ARGS]...``, after a trainer's preamble, whose
``module load`` may have brought the runtime. ORDER is a ``ContainerOrder``. Where the runtime's
process becomes the program (ch-run, enroot), it replaces this one. Else this one waits: it sends
signals on, ends what is left, as Podman's conmon, and ends as the program has, by the same signal,
which runtimes turn into a status above 128.

If nothing is started the exit status is 126, and the last line says why; no checkpoint has it.
Standard library only, but for a few small modules of ours.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

if __name__ == "__main__":  # isolated: nothing of the working directory or of the user is imported
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bftrainer.batch import process
from bftrainer.batch.containers.choice import choose, form_of
from bftrainer.batch.containers.runtime import (
    ContainerCall,
    ContainerRuntime,
    GpuVendor,
    ImageForm,
)
from bftrainer.elastic.process.worker_keeper import LAST_S, adopt, children, sweep
from bftrainer.model.container import (
    ENDED_EARLY,
    MARK,
    BindMount,
    ContainerOrder,
    covering,
    is_of_the_system,
    mounts_of,
)
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.preamble import NOT_STARTED

# Of the host's own Python and libraries: in an image they are wrong, unless the user sets them.
OF_THE_HOST = frozenset(
    {
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "BASH_ENV", "ENV"),
    }
)
# Variables that are true of this node or worker, whatever the image says.
_OF_THE_NODE = ("BFT_", "SLURM_", "LSB_", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_OF_A_PROCESS = frozenset(
    {
        *("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "OMP_NUM_THREADS", "PYTHONUNBUFFERED"),
        *("PYTHONHASHSEED", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "ZE_AFFINITY_MASK"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    }
)
_FORWARDED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1),
    *(signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH, signal.SIGXCPU),
)
SIGNALLED = 128  # plus the signal is the status of a program that it ended, as shells say it
LINGER_S = 5.0  # for conmon to remove the container by itself
LOOK_S = 0.01
HELP_LIMIT_S = 10.0  # for a runtime to print its options
# Devices by which a driver shows itself.
DRIVERS = {"/dev/nvidiactl": GpuVendor.NVIDIA, "/dev/kfd": GpuVendor.AMD}


def mounts_for(
    order: ContainerOrder, environ: Mapping[str, str], program: Sequence[str]
) -> tuple[BindMount, ...]:
    """Return all mounts of an order; the user's own come last and win.

    Directories for checkpoints that do not exist yet are made, as the program would have done.
    """
    temporary = Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 - those below it are 0700
    if not is_of_the_system(str(temporary.parent)):
        temporary = temporary.parent  # a pilot's own is below it, and caches are beside that
    for place in order.made:
        with suppress(OSError):  # the program says why
            Path(place).mkdir(parents=True, exist_ok=True)
    scripts = [str(Path(word).parent) for word in program[1:2] if _is_script(word)]
    mounts = [
        BindMount(source=place, target=place)
        for place in (*scripts, *order.directories, *order.made, str(temporary))
        if not is_of_the_system(place) and Path(place).is_dir()
    ]
    user_mounts = mounts_of(order.mounts)
    for mount in user_mounts:
        if not Path(mount.source).exists():
            raise UsageError(
                "BFT-1082",
                f"{mount.source} of --container-mounts does not exist on {os.uname().nodename}.",
                "Name what all nodes have.",
            )
    return covering([*mounts, *user_mounts])


def _is_script(word: str) -> bool:
    return word.startswith("/") and Path(word).is_file()


def variables_of(environ: Mapping[str, str], named: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the variables that a program must have: those named, and the node's."""
    required = {*named, *_OF_A_PROCESS}
    names = [name for name in environ if name in required or name.startswith(_OF_THE_NODE)]
    return tuple(sorted(names))


def environment_of(environ: Mapping[str, str], named: Iterable[str]) -> dict[str, str]:
    """Return the environment without what is true of the host's programs alone."""
    host_only = OF_THE_HOST.difference(named)
    return {name: value for name, value in environ.items() if name not in host_only}


def open_descriptors() -> list[int]:
    """Return the descriptors beyond the first three that a program inherits from us."""
    inherited = []
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        with suppress(OSError):  # that of the directory itself
            if number > 2 and os.get_inheritable(number):
                inherited.append(number)
    return sorted(inherited)


def driver() -> GpuVendor:
    """Return whose driver this machine has."""
    for device, vendor in DRIVERS.items():
        if Path(device).exists():
            return vendor
    return GpuVendor.NOBODY


def make_places(image: Path, mounts: Iterable[BindMount]) -> None:
    """Make the places in a directory that mounts need and it lacks, as far as it can be written to.

    Nothing is made behind a link, which may lead out of the image.
    """
    for mount in mounts:
        place = image
        for part in Path(mount.target).parts[1:]:
            place /= part
            if place.is_symlink():
                break
            with suppress(OSError):  # the runtime says which is missing
                place.mkdir()


def _user() -> str:
    """Return our user's name: ch-run wants USER, which batch systems may leave out."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _help_of(program: str) -> str:
    completed = process.run((program, "--help"), timeout_s=HELP_LIMIT_S)
    return completed.stdout + completed.stderr


def _enter(order: ContainerOrder, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start the program; return its status unless this process becomes the runtime's.

    Raises:
        BftError: BFT-1081, BFT-1082.
        OSError: the runtime cannot be started.
    """
    image, machine = order.image, os.uname().nodename
    is_file = image.startswith("/")
    if is_file and not Path(image).exists():
        raise UsageError(
            "BFT-1082",
            f"The image {image} does not exist on {machine}.",
            "Put it on a file system that all nodes see.",
        )
    form = form_of(image, is_directory=is_file and Path(image).is_dir())
    choice = choose(order.runtime, form, shutil.which, machine)
    runtime, program = choice.runtime, choice.program
    descriptors = open_descriptors()
    environ = environment_of({"USER": _user(), **environ}, order.variables)
    call = ContainerCall(
        program=program,
        image=image,
        argv=tuple(argv),
        mounts=mounts_for(order, environ, argv),
        variables=variables_of(environ, order.variables),
        workdir=order.workdir,
        gpus=driver(),
        temporary=environ.get("TMPDIR", ""),
        last_descriptor=max(descriptors, default=2),
        is_root=os.geteuid() == 0,
        help=_help_of(program) if runtime.reads_help else "",
    )
    if runtime.reads_help and form is ImageForm.DIRECTORY:
        make_places(Path(image), call.mounts)
    if fault := runtime.fault(call):
        raise UsageError(
            "BFT-1082", f"{fault}.", "Change --container-mounts, or the directory's name."
        )
    words, environment = runtime.command(call), runtime.environment(call, environ)
    sys.stderr.write(f"{MARK}{image} by {runtime.name} ({program})\n")
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # agents block some; programs must not
    if runtime.becomes:
        process.become(words, env=environment)
    return _wait_for(runtime, words, environment, descriptors)


def _wait_for(
    runtime: ContainerRuntime,
    words: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
) -> int:
    """Run the runtime's process to its end, with our signals; return the status."""
    adopt()
    early: list[int] = []  # signals that came before the child was there
    pids: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if not pids:
            early.append(number)
            return
        targets = list(pids)
        if not runtime.forwards:
            targets = children(pids[0])
        for pid in targets:
            with suppress(OSError):  # it has ended
                os.kill(pid, number)

    for kind in _FORWARDED:
        signal.signal(kind, forward)
    null = os.open(os.devnull, os.O_RDWR)
    inherited = [*descriptors]
    for number in range(3, max(descriptors, default=2)):  # Podman counts them through
        if number not in inherited and number != null:
            os.dup2(null, number)
        inherited.append(number)
    child = process.spawn(
        words, env=environment, stdout=1, stderr=2, pass_fds=sorted({*inherited}), new_session=False
    )
    os.closerange(3, max(inherited, default=2) + 1)  # ours must not keep a socket open
    pids.append(child.pid)
    for signalled in early:
        forward(signalled, None)
    status = child.wait()
    deadline_s = time.monotonic() + LINGER_S
    while runtime.lingers and children(os.getpid()) and time.monotonic() < deadline_s:
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(LOOK_S)
    sweep(limit_s=LAST_S)
    return status


def signal_in(status: int) -> int:
    """Return the signal that a status of a runtime tells of; 0: it tells of none."""
    number = -status if status < 0 else status - SIGNALLED
    return number if 0 < number < signal.SIGRTMIN else 0


def _end_as(status: int) -> NoReturn:
    """End with this status, or by the signal that it tells of."""
    if number := signal_in(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program's own is enough
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(status)


def main() -> NoReturn:
    """Start the program of our command line, and end as it does."""
    try:
        order = ContainerOrder.decoded(sys.argv[1])
        status = _enter(order, sys.argv[2:], os.environ)
    except BftError as problem:
        why = f"{problem.code}: {problem.cause} {problem.next_step}"
    except OSError as problem:
        why = f"{ENDED_EARLY}: The container's runtime cannot be started: {problem}."
    else:
        _end_as(status)
    sys.stderr.write(f"bftrainer: {why}\n")
    sys.stderr.flush()
    os._exit(NOT_STARTED)


if __name__ == "__main__":
    main()
