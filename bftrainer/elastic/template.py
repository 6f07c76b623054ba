"""A warm process with torch imported, from which an agent forks workers in milliseconds.

Run by the agent in the *user's* interpreter, by path, with a socket it inherits::

    INTERPRETER /abs/path/bftrainer/elastic/template.py FD

``FD`` (or the environment variable ``BFT_TEMPLATE_FD``) is one end of a
``SOCK_SEQPACKET`` Unix socket pair; every packet is a JSON object with one key. With a path
``/PATH [MODULE]...`` instead it imports the modules, too, and serves every agent that connects
there by a copy of itself (``bftrainer.elastic.shared_template``).

agent → template
    ``{"fork": BODY}`` with exactly one descriptor by ``SCM_RIGHTS``. ``BODY`` is the
    body of ``protocol.WorkerConfig``, the descriptor the worker's end of a
    ``SOCK_STREAM`` socket pair that carries ``protocol`` lines.

template → agent
    ``{"begun": {}}`` first: the trainer's preamble, if it has one, is over;
    ``{"ready": {"torch": VERSION, "import_s": SECONDS}}`` once, when everything is imported;
    ``{"forked": {"worker_id": ID, "pid": PID, "scratch": PATH}}`` (the pid is also the process
    group, the path a directory for temporary files that may come to exist);
    ``{"exited": {"worker_id": ID, "pid": PID, "returncode": N}}`` at once when a
    worker and all that it started have ended, ``-N`` for signal ``N``;
    ``{"failed": {"code": C, "cause": S, "next_step": S}}``, with ``worker_id`` if it concerns
    one fork only; otherwise the template exits with status 1.

Between the template and each worker is a keeper (``bftrainer.elastic.process.worker_keeper``),
which ends with the worker whatever that started. When the socket closes, as it does however the
agent ends, the template kills its workers' process groups and exits; keepers see to the rest. Until
it is warm, it dies with the *thread* that started it (``PR_SET_PDEATHSIG``), so start it from one
that lives on. Nothing here starts a thread, because a process with threads must not fork.

Before all else it refuses a Python or torch that is too old (BFT-1006, ``bftrainer.ground
.versions``). So Python 3.6 must be able to read this file: annotations of later forms are quoted.
"""

import array
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bftrainer.ground.protocol import WorkerConfig

MAX_PACKET_BYTES = 1 << 20
PID_BYTES = 4
PACKAGE_DIR = Path(__file__).resolve().parent.parent


class KeptWorker(NamedTuple):
    """A worker and its keeper, whose pid is the key."""

    worker_id: str
    pid: int
    says: int  # a pipe: the keeper writes the worker's pid first, its status last


class ForkServer:
    """The loop: fork on request, report every exit."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.workers: dict[int, KeptWorker] = {}  # by the pid of the keeper
        # Not imported above: the finder has to be installed first.
        self.keeper: Any = importlib.import_module("bftrainer.elastic.process.worker_keeper")
        self.scratch = self.keeper.Scratch()
        self.wake_in, self.wake_out = socket.socketpair()
        self.wake_in.settimeout(0)
        self.wake_out.settimeout(0)
        # Only so that the wake-up socket gets a byte.
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
        signal.set_wakeup_fd(self.wake_in.fileno(), warn_on_full_buffer=False)
        # It ends by the signal itself: a Python that unwinds first closes its socket, the agent
        # takes that for a failure, and the workers count as failed instead of lost.
        self.on_interrupt = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
        if self.on_interrupt is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def send(self, kind: str, **body: Any) -> None:
        """Send one packet; the loss of the agent is noticed by the next read."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(json.dumps({kind: body}).encode())

    def serve(self) -> None:
        """Work until the agent closes the socket."""
        import select  # noqa: PLC0415 - after sys.path is cleaned

        self.keeper.adopt()
        while True:
            readable, _, _ = select.select([self.channel, self.wake_out], [], [])
            if self.wake_out in readable:
                with suppress(BlockingIOError):
                    while self.wake_out.recv(4096):
                        pass
                self.reap()
            if self.channel in readable and not self.handle_packet():
                break
        for worker in self.workers.values():
            self.keeper.kill_group(worker.pid)

    def reap(self) -> None:
        """Report every worker that has ended."""
        for keeper, worker in list(self.workers.items()):
            ended_pid, wait_status = os.waitpid(keeper, os.WNOHANG)
            if not ended_pid:
                continue
            del self.workers[keeper]
            status = os.read(worker.says, PID_BYTES)
            os.close(worker.says)
            if status:
                returncode = int.from_bytes(status, "little", signed=True)
            else:  # it was killed itself, and its worker with it
                returncode = os.waitstatus_to_exitcode(wait_status)
                self.sweep(worker)
            self.send("exited", worker_id=worker.worker_id, pid=worker.pid, returncode=returncode)

    def sweep(self, worker: KeptWorker) -> None:
        """End what a keeper left that was killed; of others we adopt nothing."""
        pids = self.keeper.sweep(self.workers, limit_s=self.keeper.LAST_S)
        self.keeper.remove(self.scratch.of(worker.pid), pids)

    def handle_packet(self) -> bool:
        """Serve one request; return False when the agent is gone."""
        fd_bytes = array.array("i").itemsize
        try:
            data, ancillary, _, _ = self.channel.recvmsg(
                MAX_PACKET_BYTES, socket.CMSG_SPACE(4 * fd_bytes), socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            return False
        if not data:
            return False
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fd_bytes])
        try:
            self.fork(data, list(fds))
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def fork(self, data: bytes, fds: "list[int]") -> None:
        """Fork the worker a request describes, below a keeper; the caller closes ``fds``."""
        from bftrainer.ground import protocol  # noqa: PLC0415 - after the finder

        problem = ""
        try:
            config = protocol.from_body({"type": "WorkerConfig", **json.loads(data)["fork"]})
        except (ValueError, KeyError, TypeError, protocol.ProtocolError) as error:
            problem = str(error)
        if problem or not isinstance(config, protocol.WorkerConfig) or len(fds) != 1:
            problem = problem or "a fork needs a WorkerConfig and one descriptor"
            self.send(
                "failed",
                code="BFT-1411",
                cause=f"The template refused a request: {problem}.",
                next_step="Run the same version of bftrainer on all nodes.",
                worker_id=_worker_id_of(data),
            )
            return
        sys.stdout.flush()
        sys.stderr.flush()
        says, write_end = os.pipe()
        parent = os.getpid()
        keeper = os.fork()
        if keeper == 0:
            os.close(says)
            self.become_keeper(config, fds[0], parent, write_end)  # does not return
        os.close(write_end)
        pid = int.from_bytes(os.read(says, PID_BYTES), "little")
        if not pid:  # it could not even fork
            os.close(says)
            _, wait_status = os.waitpid(keeper, 0)
            returncode = os.waitstatus_to_exitcode(wait_status)
            self.send("exited", worker_id=config.worker_id, pid=0, returncode=returncode)
            return
        self.workers[keeper] = KeptWorker(config.worker_id, pid, says)
        place = str(self.scratch.of(pid))
        self.send("forked", worker_id=config.worker_id, pid=pid, scratch=place)

    def become_keeper(
        self, config: "WorkerConfig", channel_fd: int, parent: int, write_end: int
    ) -> NoReturn:
        """In the child: fork the worker, and tell its status when nothing is left of it."""
        os.setpgid(0, 0)
        self.keeper.adopt()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, self.on_interrupt)
        for end in (self.channel, self.wake_in, self.wake_out):
            end.close()
        for neighbour in self.workers.values():
            os.close(neighbour.says)
        keeper = os.getpid()
        worker = os.fork()
        if worker == 0:
            os.close(write_end)
            self.become_worker(config, channel_fd, keeper)
        os.close(channel_fd)
        os.write(write_end, worker.to_bytes(PID_BYTES, "little"))
        returncode, pids = self.keeper.keep(worker, parent)
        self.keeper.remove(self.scratch.of(worker), pids)
        if config.local_size > 1 and not config.local_rank:
            self.keeper.remove(self.keeper.node_place(config.member_id), ())
        self.keeper.remove_unmapped()
        os.write(write_end, returncode.to_bytes(PID_BYTES, "little", signed=True))
        os._exit(0)

    def become_worker(self, config: "WorkerConfig", channel_fd: int, parent: int) -> None:
        """In the keeper's child: run the script."""
        self.scratch.use(os.getpid())
        worker = importlib.import_module("bftrainer.elastic.worker")
        worker.run_worker(config, channel_fd, parent)


def _worker_id_of(data: bytes) -> str:
    try:
        return str(json.loads(data)["fork"]["worker_id"])
    except (ValueError, KeyError, TypeError):
        return ""


def warm_up(more: "Sequence[str]" = ()) -> str:
    """Import what a worker will need and these modules; return torch's version."""
    torch = importlib.import_module("torch")
    for name in (
        "torch.distributed",
        "torch.utils.data",
        "bftrainer.elastic.worker",
        "bftrainer.elastic.run",
        *more,
    ):
        importlib.import_module(name)
    # The first optimizer imports some 800 modules (about 1 s); no thread is started.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    return str(torch.__version__)


def _refuse(channel: "socket.socket | None", code: str, cause: str, next_step: str) -> int:
    """Tell why we cannot start, with nothing of ours that this Python may not be able to read."""
    if channel is None:
        raise SystemExit(f"{code}: {cause} {next_step}")
    packet = json.dumps({"failed": {"code": code, "cause": cause, "next_step": next_step}})
    with suppress(BrokenPipeError, ConnectionResetError):
        channel.send(packet.encode())
    return 1


def main() -> int:
    """Warm up, report it, and fork on request."""
    address = sys.argv[1] if len(sys.argv) > 1 else os.environ.pop("BFT_TEMPLATE_FD", "")
    # The agent may have blocked signals; workers must die of them as usual.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # Run by path, sys.path begins with our own directory, whose modules must not be visible.
    folder = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != folder]
    is_shared = address.startswith("/")
    channel = None if is_shared else socket.socket(fileno=int(address))
    if channel is not None:
        with suppress(BrokenPipeError, ConnectionResetError):
            channel.send(b'{"begun": {}}')
    versions = runpy.run_path(str(PACKAGE_DIR / "ground" / "versions.py"))
    refusal = versions["refusal"](*versions["there"]())
    if refusal:
        return _refuse(channel, **refusal)
    environment = dict(os.environ)
    started = time.monotonic()
    # Imported objects stay: collecting garbage among them takes a tenth of the start-up time,
    # and would later copy the pages that workers share with us.
    gc.disable()
    try:
        finder = runpy.run_path(str(PACKAGE_DIR / "elastic" / "finder.py"))
        finder["ensure_importable"](PACKAGE_DIR)
        importlib.import_module("bftrainer.ground.process").die_with_parent()
        version = warm_up(sys.argv[2:])
    except ImportError as problem:
        if channel is None:
            raise
        return _refuse(
            channel,
            code="BFT-1409",
            cause=f"The interpreter {sys.executable} cannot import PyTorch: {problem}.",
            next_step="Name an interpreter that has torch: submit --interpreter PATH.",
        )
    gc.freeze()
    gc.enable()
    import_s = round(time.monotonic() - started, 3)
    if channel is None:
        shared = importlib.import_module("bftrainer.elastic.shared_template")
        channel = shared.channel_of_an_agent(address, environment)  # returns in copies of us
    channel.set_inheritable(False)
    template = ForkServer(channel)
    importlib.import_module("bftrainer.ground.process").die_with_parent(0)
    template.send("ready", torch=version, import_s=import_s)
    template.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
