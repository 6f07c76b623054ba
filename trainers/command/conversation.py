"""The keeper's connection to the agent, and the lines of the program.

Derives the program's speed from its lines; the clock is an argument. Keeps the state to be reported
for the present generation (progress, whether the start was reported) and the rate of ``Progress``.
Called by ``keeper``.
"""

from __future__ import annotations

import json
import re
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from bftrainer.elastic.process.reports import Reports, finite
from bftrainer.ground import protocol
from bftrainer.ground.fields import MOST
from bftrainer.model.trainer import CheckpointContract, Launch, Mark
from trainers.agent.preambles import Preamble

WINDOW_S = 10.0  # rates are averages over this time
LEAST_SPAN_S = 0.1  # between progress reports that are kept for it: a program may print millions
# 15 digits are exact in every JSON parser and more than any training needs.
_WORD = r"ready|(?:step|samples|epoch)=\d{1,15}|value=\S{1,40}"
_LINE = re.compile(rf"BFT(?=\s)(?:\s+(?:{_WORD}))+\s*\Z", re.ASCII)
_NUMBER = re.compile(r"\s(step|samples|epoch)=(\d+)(?!\S)")
_VALUE = re.compile(r"\svalue=(\S+)")
PROGRESS_S = 0.5  # least time between two Progress messages
REPORTED_S = 0.25  # and between two that repeat the last reports, unless these are all new
READ_BYTES = 1 << 16


def parse_line(line: str, before: Mark) -> Mark | None:
    """Return the progress after this line; None if it is not a progress line."""
    if not _LINE.match(line):
        return None
    return replace(before, **{name: int(number) for name, number in _NUMBER.findall(line)})


def value_in(line: str) -> str | None:
    """Return the metric that a progress line reports, as its text; None: none."""
    values = _VALUE.findall(line)
    return values[-1] if values else None


class SeenMark(NamedTuple):
    """A progress report, and when it came."""

    at_s: float
    mark: Mark


class Pace:
    """Speed of a program."""

    def __init__(self) -> None:
        self._seen: deque[SeenMark] = deque()

    def add(self, place: Mark, now_s: float) -> None:
        """Add a progress report."""
        if len(self._seen) > 1 and now_s - self._seen[-2].at_s < LEAST_SPAN_S:
            self._seen.pop()
        self._seen.append(SeenMark(now_s, place))
        while len(self._seen) > 2 and now_s - self._seen[0].at_s > WINDOW_S:
            self._seen.popleft()

    def rates(self) -> tuple[float, float]:
        """Return seconds per step and samples per second; 0.0 while unknown."""
        if not self._seen:
            return 0.0, 0.0
        (from_s, first), (to_s, last) = self._seen[0], self._seen[-1]
        took_s = to_s - from_s
        if took_s <= 0.0:
            return 0.0, 0.0
        steps, samples = last.step - first.step, last.samples - first.samples
        step_s = took_s / steps if steps > 0 else 0.0
        return step_s, min(MOST, max(0.0, samples / took_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOrders:
    """The first line an agent writes."""

    config: protocol.WorkerConfig
    contract: CheckpointContract
    run: str  # which submission of the trainer
    preamble: str = ""  # path; "": none
    is_in_container: bool = False  # the preamble ends in one


def read_orders(sock: socket.socket) -> AgentOrders:
    """Wait for the first line.

    Raises:
        protocol.ProtocolError: it is not the line of a worker.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        peeked = sock.recv(READ_BYTES, socket.MSG_PEEK)
        if not peeked:
            raise protocol.ProtocolError("the agent closed the socket before its orders")
        # Only the first line: what follows is read by ``Conversation``.
        line += sock.recv(peeked.find(b"\n") + 1 or len(peeked))
    body = json.loads(line)
    config = protocol.from_body(body["config"])
    if not isinstance(config, protocol.WorkerConfig):
        raise protocol.ProtocolError("the orders hold no configuration")
    options = dict(body["options"])
    run = str(options.pop("run"))
    options["launch"] = Launch(options["launch"])
    preamble = Preamble.of(body)
    return AgentOrders(
        config=replace(config, environment=(*preamble.environment, *config.environment)),
        contract=CheckpointContract(**options),
        run=run,
        preamble=preamble.path,
        is_in_container=preamble.is_container,
    )


class Conversation:
    """Sends each message once, in order.

    At most one Progress per ``PROGRESS_S`` and, as each message repeats the last ``MAX_REPORTS``
    reports, one Reported per ``REPORTED_S`` or so many new ones.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._unread = b""
        self.is_over = False  # the agent has closed its end
        self.place = Mark()
        self.resumed_from = ""
        self.generation = 0
        self._attempt = self._rank = self._size = 0
        self._has_entered = False
        self._pace = Pace()
        self._reports = Reports()
        self._said_s = self._reported_s = 0.0
        self._unsaid_reports = 0
        self._progress_due_s: float | None = None  # when a held-back Progress is due
        self._reports_due_s: float | None = None  # and held-back reports

    @property
    def due_s(self) -> float | None:
        """When something that was held back is due; None: nothing was."""
        times = (self._progress_due_s, self._reports_due_s)
        return min((due_s for due_s in times if due_s is not None), default=None)

    def fileno(self) -> int:
        """For the selector."""
        return self._socket.fileno()

    def receive(self) -> list[protocol.ToWorker]:
        """Return the messages that have arrived."""
        try:
            data = self._socket.recv(READ_BYTES)
        except ConnectionResetError:
            data = b""
        self.is_over = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        messages = map(protocol.decode, lines)
        return [message for message in messages if isinstance(message, protocol.ToWorker)]

    def send(self, message: protocol.FromWorker) -> None:
        """Send a message, unless the agent is gone."""
        try:
            self._socket.sendall(protocol.encode(message))
        except (BrokenPipeError, ConnectionResetError):
            self.is_over = True

    def _tell(self, kind: Callable[..., protocol.FromWorker], **words: Any) -> None:
        self.send(kind(generation=self.generation, **words))

    def begin(self, commit: protocol.Commit, rank: int) -> None:
        """Report as a member of this generation from now on."""
        self.generation, self._attempt = commit.generation, commit.attempt
        self._rank, self._size = rank, len(commit.members)

    def entered(self, now_s: float) -> None:
        """Report, once, that the program runs."""
        if self._has_entered:
            return
        self._has_entered = True
        self._tell(
            protocol.Entered,
            attempt=self._attempt,
            rank=self._rank,
            size=self._size,
            pause_s=0.0,  # all were stopped: the daemon measures from the stop
            transfer_s=0.0,
            resumed_from=self.resumed_from,
            **asdict(self.place),
        )
        self._said_s = now_s

    def progress(self, place: Mark, now_s: float) -> None:
        """Record the program's progress; that of the first node counts."""
        if self._rank == 0:
            self.place = place
            self._pace.add(place, now_s)
        if not self._has_entered:
            self.entered(now_s)
        elif self._rank == 0 and self._progress_due_s is None:
            self._progress_due_s = max(now_s, self._said_s + PROGRESS_S)
            self.tick(now_s)

    def report(self, value: str, now_s: float) -> None:
        """Report a metric of the program; that of the first node counts.

        Raises:
            ElasticError: BFT-1611 when it is not a finite number.
        """
        if self._rank != 0:
            return
        self._reports.add(protocol.Report(value=finite(value), **asdict(self.place)))
        self._unsaid_reports += 1
        self._reports_due_s = self._reported_s + REPORTED_S
        if self._unsaid_reports >= protocol.MAX_REPORTS:  # the next one would displace one
            self._reports_due_s = now_s
        self.tick(now_s)

    def tick(self, now_s: float) -> None:
        """Send what was held back, as far as it is due."""
        if self._reports_due_s is not None and now_s >= self._reports_due_s:
            self._say_reports(now_s)
        if self._progress_due_s is not None and now_s >= self._progress_due_s:
            self._say_progress(now_s)

    def flush(self) -> None:
        """Send what was held back now."""
        if self._reports_due_s is not None:
            self._say_reports(self._reports_due_s)
        if self._progress_due_s is not None:
            self._say_progress(self._progress_due_s)

    def _say_reports(self, now_s: float) -> None:
        self._unsaid_reports, self._reports_due_s, self._reported_s = 0, None, now_s
        self._tell(protocol.Reported, reports=self._reports.kept)

    def _say_progress(self, now_s: float) -> None:
        self._progress_due_s, self._said_s = None, now_s
        step_s, rate = self._pace.rates()
        self._tell(protocol.Progress, step_s=step_s, samples_per_s=rate, **asdict(self.place))

    def saved(self, path: str, took_s: float) -> None:
        """Report that the program wrote the requested checkpoint."""
        self.flush()
        step, samples = self.place.step, self.place.samples
        self._tell(protocol.Saved, step=step, samples=samples, path=path, wall_s=took_s)

    def interrupted(self, reason: str) -> None:
        """Report that it did not."""
        self.flush()
        self._tell(protocol.Interrupted, attempt=self._attempt, step=self.place.step, reason=reason)

    def finished(self, now_s: float) -> None:
        """Report that the training is complete."""
        self.entered(now_s)
        self.flush()
        self._tell(protocol.Finished, **asdict(self.place))
