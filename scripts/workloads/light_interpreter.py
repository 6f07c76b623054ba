"""Stands in for a user's interpreter where sixteen nodes share two processors.

Run by agents as ``INTERPRETER TEMPLATE FD``. It is the template of ``bftrainer.elastic``
itself, without torch: nothing is imported that takes long, and the workers it forks
speak the protocol of real ones (they join, enter generations, report, leave and park)
but sleep instead of computing. Their steps follow the clock, so a joiner has everybody's
state at once; their samples grow by as many a second as members times ``SAMPLES_PER_S``, for
the daemon measures what a size is worth by them. For benchmarks whose trainers only have to be
there (``_bench/real_slurm/light.py``).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(sys.argv[1]).resolve().parents[2]))

from bftrainer.elastic.template import ForkServer
from bftrainer.ground import protocol

STEP_S = 0.1
REPORT_S = 2.0
SAMPLES_PER_S = 100.0  # of each member: a trainer that scales like this one scales linearly
MOST_MEMBERS = 64  # at any time samples are as many as if these had trained up to a generation


class Sleeper:
    """A worker that does nothing but belong to a trainer."""

    def __init__(self, config: protocol.WorkerConfig, channel: socket.socket) -> None:
        self._config = config
        self._channel = channel
        self._unread = b""
        self._commit: protocol.Commit | None = None
        self._entered_s = 0.0  # in whole seconds, so that members agree on it

    def run(self) -> NoReturn:
        """Obey until told to leave."""
        self._send(protocol.Warm(warm_up_s=0.0))
        while True:
            readable, _, _ = select.select([self._channel], [], [], REPORT_S)
            if readable:
                self._read()
            elif self._commit is not None:
                self._report(self._commit)

    def _read(self) -> None:
        chunk = self._channel.recv(1 << 16)
        if not chunk:
            os._exit(1)  # the agent is gone
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            self._obey(protocol.decode(line))

    def _obey(self, message: protocol.Message) -> None:
        match message:
            case protocol.Prepare(generation=generation, attempt=attempt, open_store=opens):
                # Nobody will connect to the store: there is no gradient to share.
                port = 1 if opens else 0
                self._send(protocol.Ready(generation=generation, attempt=attempt, store_port=port))
            case protocol.Commit():
                self._switch(message)
            case protocol.Stop():
                os._exit(0)

    def _switch(self, commit: protocol.Commit) -> None:
        former = self._commit
        if former is not None and (commit.generation, commit.attempt) <= (
            former.generation,
            former.attempt,
        ):
            return
        me = next((m for m in commit.members if m.worker_id == self._config.worker_id), None)
        if me is None:
            self._leave(commit)
        now_s = time.time()
        self._commit, self._entered_s = commit, float(int(now_s))
        self._send(
            protocol.Entered(
                generation=commit.generation,
                attempt=commit.attempt,
                rank=me.rank,
                size=len(commit.members),
                step=_step(now_s),
                epoch=0,
                samples=self._samples(now_s),
                pause_s=0.0,
                transfer_s=0.0,
            )
        )

    def _leave(self, commit: protocol.Commit) -> NoReturn:
        now_s = time.time()
        saver = commit.saver or self._config.worker_id
        if not commit.members and saver == self._config.worker_id:
            self._send(
                protocol.Saved(
                    generation=commit.generation - 1,
                    step=_step(now_s),
                    samples=self._samples(now_s),
                    path="none",
                    wall_s=0.0,
                )
            )
        self._send(protocol.Left(generation=commit.generation, step=_step(now_s)))
        os._exit(0)

    def _report(self, commit: protocol.Commit) -> None:
        now_s = time.time()  # once: a report's steps and samples belong together
        self._send(
            protocol.Progress(
                generation=commit.generation,
                step=_step(now_s),
                epoch=0,
                samples=self._samples(now_s),
                step_s=STEP_S,
                samples_per_s=len(commit.members) * SAMPLES_PER_S,
            )
        )

    def _samples(self, now_s: float) -> int:
        """Return the samples so far: no member has a history, but all have a clock."""
        members = 0 if self._commit is None else len(self._commit.members)
        before = MOST_MEMBERS * self._entered_s
        return int(SAMPLES_PER_S * (before + members * (now_s - self._entered_s)))

    def _send(self, message: protocol.FromWorker) -> None:
        self._channel.sendall(protocol.encode(message))


class LightTemplate(ForkServer):
    """The template's loop around workers that sleep."""

    def become_worker(self, config: protocol.WorkerConfig, channel_fd: int, parent: int) -> None:
        """In the child: belong."""
        del parent  # should it end, the agent ends with it, and then the channel
        os.setsid()
        Sleeper(config, socket.socket(fileno=channel_fd)).run()


def main() -> int:
    """Say that forks are cheap, and fork on request."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    channel = socket.socket(fileno=int(sys.argv[2]))
    channel.set_inheritable(False)
    template = LightTemplate(channel)
    template.send("ready", torch="none", import_s=0.0)
    template.serve()
    return 0


def _step(now_s: float) -> int:
    return int(now_s / STEP_S)


if __name__ == "__main__":
    sys.exit(main())
