"""Runs one program on one node: starts it, requests checkpoints, reports its progress.

To the agent a keeper is a worker: it receives its configuration, then messages of
``bftrainer.ground.protocol``, and sends a worker's messages. It lives for one generation:
``Warm`` at once, ``Ready``, the program, and an end. It adopts what the program leaves behind, and
ends all that before it ends itself or starts the program again. If the agent dies, the keeper kills
its process group, including the program; if the keeper dies, the agent does. Called by
``__main__``.
"""

from __future__ import annotations

import enum
import os
import selectors
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from bftrainer.elastic.process.worker_keeper import LAST_S, reap, sweep
from bftrainer.elastic.worker import SPENT_LOGS, remove_spent_logs
from bftrainer.fleet.runtimes.checks import signal_number
from bftrainer.ground import protocol
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.ports import VARIABLE, listen_within
from bftrainer.ground.regular_file import ANY_OWNER, check_directory, open_log, why
from bftrainer.model.preamble import NOT_STARTED, under, why_not_started
from bftrainer.model.trainer import Launch
from trainers.command.conversation import (
    AgentOrders,
    Conversation,
    parse_line,
    read_orders,
    value_in,
)
from trainers.command.program import (
    ControlFile,
    FencedError,
    Program,
    directory_of,
    program_environment,
    take,
)

QUIET_START_S = 10.0  # a silent program counts as started after this time
DIRECTORY_PATIENCE_S = 30.0  # limit until the first node's rename is visible here
LOOK_S = 0.02  # between two checks for it
REAP_S = 10.0  # at most, until processes that we adopted and that have ended are reaped
NEWS_PATIENCE_S = 1.0  # wait for a message that explains a program's end: a loss, a stop
MIN_RUN_S = 1.0  # a program that asks for a restart sooner would loop
KILLED = 1  # our exit status after a failure, which ``Failed`` describes


class ProgramState(enum.Enum):
    """State of the program."""

    WAITING = "waiting"  # for a generation
    LOOKING = "looking"  # for the checkpoint directory
    RUNNING = "running"
    STOPPING = "stopping"  # asked for its checkpoint
    ABANDONED = "abandoned"  # killed, because the generation is broken
    FAILED = "failed"  # it failed, which may turn out to be the effect of a loss
    SAVED = "saved"  # it saved and ended unasked: perhaps others were asked before it
    OVER = "over"  # nothing to run on this node any more


class Keeper:
    """One worker of runtime ``command``."""

    def __init__(self, sock: socket.socket) -> None:
        began_s = time.monotonic()
        self._orders: AgentOrders = read_orders(sock)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._talk = Conversation(sock)
        self._stage = ProgramState.WAITING
        self._status: int | None = None  # ours, once it is known
        self._deadline_s: float | None = None  # of the stage
        self._save_s: float | None = None  # when the next checkpoint is requested
        self._asked_s = 0.0
        self._commit: protocol.Commit | None = None
        self._rank = 0
        self._program: Program | None = None
        self._control = ControlFile(is_for_container=self._orders.is_in_container)
        self._reserved: socket.socket | None = None
        self._failure = ""
        self._last_lines: deque[str] = deque(maxlen=4)  # that the program printed
        config = self._orders.config
        environment = dict(config.environment)
        os.environ[ANY_OWNER] = environment.get(ANY_OWNER, "")
        self._log = self._open_log(config.log_path or os.devnull)
        remove_spent_logs(config.log_path, environment.get(SPENT_LOGS, ""))
        self._talk.send(protocol.Warm(warm_up_s=time.monotonic() - began_s))

    def _open_log(self, path: str) -> BinaryIO:
        try:
            with suppress(FileNotFoundError):
                check_directory(self._orders.config.checkpoint_dir)
            # By its user, not by the daemon.
            return os.fdopen(open_log(path), "ab", buffering=0)
        except OSError as problem:
            self._talk.send(
                protocol.Failed(
                    code="BFT-1411",
                    cause=f"The log of the program cannot be written: {why(problem)}.",
                    next_step="Name a directory of yours, seen by the nodes, with"
                    " --checkpoint-dir.",
                )
            )
            raise SystemExit(KILLED) from problem

    def run(self) -> int:
        """Serve until the generation is over; return the exit status."""
        while self._status is None:
            for key, _ in self._selector.select(self._patience_s()):
                self._look_at(key.fd)
            reap(self._own())
            self._let_time_pass(time.monotonic())
        self._talk.flush()
        sweep(limit_s=LAST_S)
        self._control.close()
        return self._status

    def _look_at(self, fd: int) -> None:
        program = self._program
        if fd == self._talk.fileno():
            for message in self._talk.receive():
                self._told(message)
            if self._talk.is_over:
                _end_all()  # the agent is gone: we no longer hold the node
        elif program is not None and fd == program.output_fd:
            self._hear(program)
            if program.is_silent:
                self._selector.unregister(fd)
        elif program is not None and fd == program.pidfd:
            self._ended(program)

    def _patience_s(self) -> float | None:
        now_s = time.monotonic()
        times = (self._deadline_s, self._save_s, self._talk.due_s)
        waits = [max(0.0, at - now_s) for at in times if at is not None]
        if self._program is not None:
            waits.append(REAP_S)
        if self._stage is ProgramState.LOOKING:
            waits.append(LOOK_S)
        return min(waits, default=None)

    def _let_time_pass(self, now_s: float) -> None:
        self._talk.tick(now_s)
        if self._stage is ProgramState.LOOKING:
            self._look_for_directory(now_s)
        if self._save_s is not None and now_s >= self._save_s:
            self._save_s = now_s + self._orders.config.checkpoint_interval_s
            self._ask("save", self._orders.contract.save_signal)
        if self._deadline_s is None or now_s < self._deadline_s:
            return
        self._deadline_s = None
        if self._stage is ProgramState.RUNNING:
            self._talk.entered(now_s)
        elif self._stage is ProgramState.STOPPING and self._program is not None:
            self._write_log("no checkpoint within --checkpoint-grace, killed")
            self._program.kill()
        elif self._stage is ProgramState.FAILED:
            self._fail(self._failure)
        elif self._stage is ProgramState.SAVED:
            self._write_log("restarted at its own request")
            self._start()

    # ---- messages of the daemon ------------------------------------------------------

    def _told(self, message: protocol.ToWorker) -> None:
        match message:
            case protocol.Prepare():
                self._talk.send(
                    protocol.Ready(
                        generation=message.generation,
                        attempt=message.attempt,
                        store_port=self._reserve_port() if message.open_store else 0,
                    )
                )
            case protocol.Commit() if self._stage is ProgramState.WAITING:
                self._begin(message)
            case protocol.Commit():
                self._stop(is_abandoned=message.abandon)
            case protocol.Stop():
                _end_all()

    def _reserve_port(self) -> int:
        if self._reserved is None:
            self._reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserve = self._reserved.bind
            listen_within(os.environ.get(VARIABLE, ""), lambda port: reserve(("", port)))
        return int(self._reserved.getsockname()[1])

    def _begin(self, commit: protocol.Commit) -> None:
        mine = [m.rank for m in commit.members if m.worker_id == self._orders.config.worker_id]
        if not mine:
            self._leave(commit.generation)
            return
        self._commit, self._rank = commit, mine[0]
        self._talk.begin(commit, self._rank)
        if self._rank == 0:
            self._take_directory(commit)
        elif self._orders.contract.launch is Launch.FIRST:
            self._stage = ProgramState.OVER
            self._talk.entered(time.monotonic())
        else:
            self._stage = ProgramState.LOOKING
            self._deadline_s = None
            self._asked_s = time.monotonic()

    def _stop(self, *, is_abandoned: bool) -> None:
        generation = self._commit.generation if self._commit else 0
        if self._stage in (ProgramState.STOPPING, ProgramState.ABANDONED):
            return
        self._save_s = None
        if self._stage is not ProgramState.RUNNING or self._program is None:
            if self._stage is ProgramState.FAILED:
                self._write_log("it failed because a member was lost")
            elif self._stage is ProgramState.SAVED and not is_abandoned:
                self._say_saved(0.0)
            self._leave(generation)
        elif is_abandoned:
            self._stage, self._deadline_s = ProgramState.ABANDONED, None
            self._write_log("a member was lost, killed")
            self._program.kill()
        else:
            self._stage, self._asked_s = ProgramState.STOPPING, time.monotonic()
            self._deadline_s = self._asked_s + self._orders.contract.grace_s
            self._ask("stop", self._orders.contract.stop_signal)

    def _ask(self, word: str, signal_name: str) -> None:
        number = signal_number(signal_name)
        self._control.write(word)
        if self._program is not None and number is not None:
            self._program.signal(number)

    def _own(self) -> tuple[int, ...]:
        return () if self._program is None else (self._program.pid,)

    # ---- the program -----------------------------------------------------------------

    def _take_directory(self, commit: protocol.Commit) -> None:
        base = Path(self._orders.config.checkpoint_dir)
        try:
            take(base, run=self._orders.run, generation=commit.generation)
        except FencedError as problem:
            self._fail(f"BFT-1416 {problem}")
        except OSError as problem:
            self._fail(f"BFT-1415 The checkpoint directory cannot be used: {problem}.")
        else:
            self._start()

    def _look_for_directory(self, now_s: float) -> None:
        if self._commit is None:
            return
        path = directory_of(Path(self._orders.config.checkpoint_dir), self._commit.generation)
        if path.is_dir():
            self._start()
        elif now_s - self._asked_s > DIRECTORY_PATIENCE_S:
            self._fail(f"BFT-1415 {path}, created on the first node, is not visible here.")

    def _start(self) -> None:
        config, commit = self._orders.config, self._commit
        if commit is None:
            return
        sweep(limit_s=LAST_S)  # what the last run of the program left
        directory = directory_of(Path(config.checkpoint_dir), commit.generation)
        environment = program_environment(
            config,
            commit,
            self._rank,
            checkpoint_dir=str(directory),
            control_file=self._control.path,
            inherited=os.environ,
        )
        self._control.clear()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        argv: tuple[str, ...] = (config.script, *config.args)
        self._write_log(
            f"generation {commit.generation}, rank {self._rank} of {len(commit.members)}"
            f" on {config.node}: {' '.join(argv)}"
        )
        if self._orders.preamble:
            argv = under(self._orders.preamble, argv)
        try:
            program = Program(argv, cwd=Path(config.cwd), environment=environment, log=self._log)
        except OSError as problem:
            self._fail(f"BFT-1418 {config.script} cannot be started: {problem}.")
            return
        if self._rank == 0 and any(directory.iterdir()):
            self._talk.resumed_from = str(directory)
        self._program, self._stage = program, ProgramState.RUNNING
        self._deadline_s = program.started_s + QUIET_START_S
        self._save_s = program.started_s + config.checkpoint_interval_s
        self._selector.register(program.output_fd, selectors.EVENT_READ)
        self._selector.register(program.pidfd, selectors.EVENT_READ)

    def _hear(self, program: Program) -> None:
        for line in program.read():
            self._last_lines.append(line)
            place = parse_line(line, self._talk.place)
            if place is None:
                continue
            self._talk.progress(place, time.monotonic())
            if self._stage is ProgramState.RUNNING:
                self._deadline_s = None
            if (value := value_in(line)) is not None:
                self._report(value)

    def _report(self, value: str) -> None:
        try:
            self._talk.report(value, time.monotonic())
        except ElasticError as problem:
            self._write_log(str(problem))

    def _ended(self, program: Program) -> None:
        self._hear(program)
        self._talk.flush()
        self._selector.unregister(program.pidfd)
        if not program.is_silent:
            self._selector.unregister(program.output_fd)
        status, ran_s = program.end(), time.monotonic() - program.started_s
        self._program, self._save_s, self._deadline_s = None, None, None
        self._write_log(f"ended with status {status} after {ran_s:.2f} s")
        if self._stage is ProgramState.STOPPING:
            self._ended_as_asked(status)
        elif self._stage is ProgramState.ABANDONED:
            self._leave(self._talk.generation)
        else:
            self._ended_by_itself(status, ran_s)

    def _ended_as_asked(self, status: int) -> None:
        if status == 0 and self._rank == 0:
            self._finish()
            return
        if status == self._orders.contract.saved_status:
            self._say_saved(time.monotonic() - self._asked_s)
        elif status != 0:
            self._talk.interrupted(
                f"On {self._orders.config.node} it ended with status {status}, not"
                f" {self._orders.contract.saved_status}, when it was asked for a checkpoint."
            )
        self._leave(self._talk.generation)

    def _ended_by_itself(self, status: int, ran_s: float) -> None:
        """Go by an end that nobody asked for; SAVED and FAILED wait for news that explains them."""
        contract = self._orders.contract
        if status == 0 and self._rank == 0:
            self._finish()
        elif status == 0:
            # Only the first node's end completes the trainer; until then it stays a member.
            self._stage = ProgramState.OVER
            self._talk.entered(time.monotonic())
        # Alone, a program that saves at once would be started again without end; one of several
        # may have been told by the others.
        elif status == contract.saved_status and (not self._is_alone() or ran_s >= MIN_RUN_S):
            self._wait_for_news(ProgramState.SAVED)
        elif status == -signal.SIGTERM:  # the batch system takes the node
            self._talk.flush()
            sweep(limit_s=LAST_S)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._failure = f"BFT-1418 {self._orders.config.script} ended with status {status}."
            if self._orders.preamble and status == NOT_STARTED:
                output, path = "\n".join(self._last_lines), self._orders.preamble
                code, _, cause = why_not_started(output, status, path).partition(": ")
                self._failure = f"{code} {cause}"
            self._wait_for_news(ProgramState.FAILED)

    def _wait_for_news(self, stage: ProgramState) -> None:
        self._stage = stage
        self._deadline_s = time.monotonic()
        if not self._is_alone():
            self._deadline_s += NEWS_PATIENCE_S

    def _is_alone(self) -> bool:
        return self._commit is None or len(self._commit.members) == 1

    # ---- ends ------------------------------------------------------------------------

    def _finish(self) -> None:
        self._talk.finished(time.monotonic())
        self._status = 0

    def _say_saved(self, took_s: float) -> None:
        directory = directory_of(Path(self._orders.config.checkpoint_dir), self._talk.generation)
        self._talk.saved(str(directory), took_s)

    def _leave(self, generation: int) -> None:
        self._talk.send(protocol.Left(generation=generation, step=self._talk.place.step))
        self._status = 0

    def _fail(self, text: str) -> None:
        code, _, cause = text.partition(" ")
        self._write_log(f"{code}: {cause}")
        self._talk.send(
            protocol.Failed(
                code=code, cause=cause, next_step="What it printed is in the worker's log."
            )
        )
        self._status = KILLED

    def _write_log(self, text: str) -> None:
        self._log.write(f"bftrainer: {text}\n".encode())


def _end_all() -> None:
    sweep()
    os.killpg(0, signal.SIGKILL)
