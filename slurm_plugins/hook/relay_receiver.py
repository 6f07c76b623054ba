"""Receives lines from the relays of the controllers' hosts, and makes announcements of them.

Two relays may follow one file, and then each line of it comes twice; two equal lines of one relay
are two jobs. A line that comes late announces a job that a poll has shown: it would look like
another.

``Relays`` listens in a thread of its own, as long as the daemon runs; ``RelayedHook`` is the
announcer while at least one relay is there. Only registered keys are let in
(``bftrainer.fleet.wire``). While a registered relay is missing the daemon is told by the others but
polls, too: the missing one may be that of the primary controller. A relay without a file
waits for that of a backup controller, which is created when it takes over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.awake import AwakeClock
from bftrainer.batch.tail import MOST_BYTES
from bftrainer.fleet.wire.keys import KeyPair
from bftrainer.fleet.wire.router import CurveRouter, Origin, RefusedMessages
from bftrainer.model.errors import BatchSystemError, BftError
from slurm_plugins.hook.relay import (
    BEAT_S,
    MOST_FRAME_BYTES,
    SILENT_S,
    RelayError,
    RelayWord,
    decode,
    shown,
)
from slurm_plugins.hook.watch import Heard

KEPT_S: Final = 5.0  # at least; a line has its second, so equal ones are close together
MOST_KEPT: Final = 5000  # different lines
WINDOW_S: Final = 60.0
LATE_S: Final = 1.0  # longer on its way than the fastest word; a poll has shown the job
LOG = logging.getLogger("bftrainer.relay")
TURN_S = 0.1
MOST_PER_TURN = 200  # words, and ...
MOST_BYTES_PER_TURN = 2 * MOST_BYTES  # ... bytes; then this thread rests until the turn is over
START_LIMIT_S = 10.0


class Repeats:
    """Lines of the last seconds, by the relay that sent them."""

    def __init__(self) -> None:
        self._now: defaultdict[str, Counter[bytes]] = defaultdict(Counter)
        self._before: defaultdict[str, Counter[bytes]] = defaultdict(Counter)
        self._since_s = -math.inf

    def is_repeated(self, line: str, teller: bytes, now_s: float) -> bool:
        """Record a line; return whether others have told it as often before."""
        if now_s - self._since_s > KEPT_S or len(self._now) >= MOST_KEPT:
            is_recent = now_s - self._since_s <= 2 * KEPT_S
            self._before = defaultdict(Counter)
            if is_recent:
                self._before = self._now
            self._now, self._since_s = defaultdict(Counter), now_s
        self._now[line][teller] += 1
        n_times = self._now[line] + self._before.get(line, Counter())
        n_of_teller = n_times.pop(teller)
        return n_of_teller <= max(n_times.values(), default=0)


class Lateness:
    """The delay of the words of one relay, whatever its clock and ours show."""

    def __init__(self) -> None:
        self._now_s = self._before_s = math.inf  # smallest difference of the clocks, in two windows
        self._since_s = -math.inf

    def is_late(self, sent_s: float, heard_s: float) -> bool:
        """Record a word; return whether it was much longer on its way than the fastest."""
        if heard_s - self._since_s > WINDOW_S:
            self._before_s, self._now_s, self._since_s = self._now_s, math.inf, heard_s
        self._now_s = min(self._now_s, heard_s - sent_s)
        return heard_s - sent_s - min(self._now_s, self._before_s) > LATE_S


@dataclass(slots=True, kw_only=True)
class _Link:
    """The connection of a relay."""

    key: str
    awake_s: float = 0.0  # when it was last heard, by the clock of our thread
    lateness: Lateness = field(default_factory=Lateness)
    why_deaf: str = ""
    is_waiting: bool = False
    is_silent: bool = False

    @property
    def tells(self) -> bool:
        return not self.is_silent and not self.why_deaf

    @property
    def is_there(self) -> bool:
        return self.tells or (self.is_waiting and not self.is_silent)


class Relays:
    """Listens to the relays whose keys are registered. Thread-safe."""

    def __init__(self, *, host: str, port: int, keys: KeyPair, allowed: frozenset[str]) -> None:
        self._host, self._port, self._keys, self._allowed = host, port, keys, allowed
        self._lock = threading.Lock()
        self._links: dict[bytes, _Link] = {}
        self._repeats = Repeats()
        self._lines: list[str] = []
        self._n_bytes, self._wants_look = 0, False
        self._counts: Counter[str] = Counter()
        self._turn_ends_s, self._words, self._bytes = 0.0, 0, 0
        self._awake = AwakeClock(shortest_s=SILENT_S)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop: Callable[[], object] = lambda: None
        self.refusals = RefusedMessages(LOG)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen, unless we do already.

        Raises:
            BatchSystemError: BFT-1512, the address cannot be used.
        """
        if self._thread is not None:
            return
        listening: Future[str] = Future()  # the address, once it is listened on
        thread = threading.Thread(target=self._run, args=(listening,), name="relays", daemon=True)
        thread.start()
        try:
            endpoint = listening.result(START_LIMIT_S)
        except BftError as problem:
            raise BatchSystemError(
                "BFT-1512",
                f"The relays of the hook cannot be heard: {problem.cause}",
                "Give hook_relay a free port and an address of this host, or tcp://*:PORT.",
            ) from problem
        self._thread = thread
        LOG.info("relays are heard at %s; this daemon's key: %s", endpoint, self.key)

    @property
    def key(self) -> str:
        """Our public key, as relays are given it."""
        return shown(self._keys.public)

    @property
    def telling(self) -> int:
        """Number of registered relays that are there and can read their file."""
        with self._lock:
            return len({link.key for link in self._links.values() if link.tells})

    @property
    def is_whole(self) -> bool:
        """Return whether all registered relays are there, and one at least has a file."""
        with self._lock:
            return self._keys_there() == self._allowed and any(
                link.tells for link in self._links.values()
            )

    def why_untold(self) -> str:
        """Say why no relay tells."""
        with self._lock:
            for link in self._links.values():
                if link.why_deaf:
                    return link.why_deaf
        return f"None of {len(self._allowed)} is connected."

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is news."""
        return self._event

    def take(self) -> tuple[list[str], bool]:
        """Return the lines since the last call, and whether a poll must show more."""
        with self._lock:
            try:
                os.eventfd_read(self._event)
            except BlockingIOError:
                return [], False
            lines, self._lines, self._n_bytes = self._lines, [], 0
            wants_look, self._wants_look = self._wants_look, False
        return lines, wants_look

    def counts(self) -> Mapping[str, int]:
        """Return what was heard and refused so far."""
        with self._lock:
            return {**self._counts, **self.refusals.counts}

    def close(self) -> None:
        """Stop listening. Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop()
            thread.join()
            os.close(self._event)

    # -- in the thread -------------------------------------------------------------------

    def _run(self, ready: Future[str]) -> None:
        try:
            asyncio.run(self._listen(ready))
        except BftError as problem:
            ready.set_exception(problem)

    async def _listen(self, ready: Future[str]) -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(over.set)
        router = CurveRouter(
            keys=self._keys,
            max_message_bytes=MOST_FRAME_BYTES,
            is_allowed=self._allowed.__contains__,
            on_frame=self._on_frame,
            on_gone=self._on_gone,
            refusals=self.refusals,
        )
        try:
            ready.set_result(router.start(self._host, self._port))
            while not over.is_set():
                try:
                    await asyncio.wait_for(over.wait(), BEAT_S / 2)
                except TimeoutError:
                    self._note_silent()
        finally:
            router.close()

    def _on_frame(self, origin: Origin, frame: bytes) -> None:
        self._rest_if_flooded(len(frame))
        try:
            word = decode(frame)
        except RelayError as problem:
            whom = f"relay {shown(origin.public_key)[:8]}"
            self.refusals.refuse("malformed", whom, problem, code="BFT-1513")
            return
        with self._lock:
            self._hear(origin, word, time.monotonic())

    def _hear(self, origin: Origin, word: RelayWord, now_s: float) -> None:
        link = self._links.get(origin.route)
        is_new = link is None or not link.tells
        if link is None:
            link = self._links[origin.route] = _Link(key=origin.public_key)
        link.awake_s, link.is_silent = self._awake(), False
        was_deaf, link.why_deaf = link.why_deaf, word.why_deaf
        link.is_waiting = word.is_waiting
        if is_new and link.tells:
            self._changed(link, "connected", "tells of jobs")
        elif word.is_waiting and not was_deaf:
            self._changed(link, "waiting", "is there; its controller has no hook's file yet")
        elif word.why_deaf and word.why_deaf != was_deaf:
            self._changed(link, "deaf", f"cannot read its file: {word.why_deaf}")
        is_late = link.lateness.is_late(word.sent_s, now_s)
        if is_late:
            self._counts["late"] += len(word.lines)
        else:
            self._keep(word, origin.route, now_s)
        if word.is_too_much or (is_late and word.lines):
            self._wants_look = True
        if self._lines or self._wants_look:
            os.eventfd_write(self._event, 1)

    def _keep(self, word: RelayWord, teller: bytes, now_s: float) -> None:
        for line in word.lines:
            if self._repeats.is_repeated(line, teller, now_s):
                self._counts["repeated"] += 1
            elif self._n_bytes + len(line) > MOST_BYTES:
                self._counts["skipped"] += 1
                self._wants_look = True
            else:
                self._counts["lines"] += 1
                self._n_bytes += len(line)
                self._lines.append(line)

    def _on_gone(self, routes: Collection[bytes]) -> None:
        with self._lock:
            for route in routes:
                link = self._links.pop(route, None)
                if link is not None and link.is_there:
                    self._changed(link, "lost", "is lost: its connection ended")

    def _note_silent(self) -> None:
        self._awake.beat(BEAT_S / 2)
        now_s = self._awake()
        with self._lock:
            for link in self._links.values():
                if link.is_there and now_s - link.awake_s > SILENT_S:
                    link.is_silent = True
                    self._changed(link, "lost", f"is lost: silent for {SILENT_S:g} s")

    def _keys_there(self) -> set[str]:
        return {link.key for link in self._links.values() if link.is_there}

    def _changed(self, link: _Link, count: str, what: str) -> None:
        """Note that a relay comes or goes; called with the lock held."""
        self._counts[count] += 1
        n_there = len(self._keys_there())
        level, consequence = logging.WARNING, ", and the daemon polls, too"
        if count in {"connected", "waiting"}:
            level = logging.INFO
        if n_there == len(self._allowed):
            consequence = ""
        LOG.log(
            level,
            "relay %s %s; %d of %d are there%s",
            *(shown(link.key)[:8], what, n_there, len(self._allowed), consequence),
        )
        self._wants_look = True
        os.eventfd_write(self._event, 1)

    def _rest_if_flooded(self, n_bytes: int) -> None:
        """Leave the processor to the daemon if relays send more than the hook could write."""
        now_s = time.monotonic()
        if now_s >= self._turn_ends_s:
            self._turn_ends_s, self._words, self._bytes = now_s + TURN_S, 0, 0
        self._words += 1
        self._bytes += n_bytes
        if self._words > MOST_PER_TURN or self._bytes > MOST_BYTES_PER_TURN:
            time.sleep(max(0.0, self._turn_ends_s - now_s))


class RelayedHook:
    """An ``Announcer`` of what relays carry."""

    def __init__(self, relays: Relays, heard: Heard) -> None:
        """Take part; what was said before is left to the next poll.

        Raises:
            BatchSystemError: BFT-1511, no relay tells; BFT-1512, they cannot be heard.
        """
        self._relays, self._heard = relays, heard
        relays.start()
        self._refuse_silence()
        relays.take()

    @property
    def hears_all(self) -> bool:
        """Return whether no registered relay is missing."""
        return self._relays.is_whole

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a relay has told something."""
        return self._relays.fileno()

    def read(self) -> tuple[Announcement, ...]:
        """Return the announcements since the last call.

        Raises:
            BatchSystemError: BFT-1511, no relay tells any more.
        """
        self._refuse_silence()
        lines, wants_look = self._relays.take()
        return self._heard.announcements(lines, is_too_much=wants_look)

    def close(self) -> None:
        """Stop reading; the relays stay connected."""

    def _refuse_silence(self) -> None:
        if not self._relays.telling:
            raise BatchSystemError(
                "BFT-1511",
                f"No relay tells of jobs: {self._relays.why_untold()}",
                "See the log of bftrainer-slurm-hook --relay on the controllers' hosts; their "
                "keys must be in hook_relay_keys.",
            )
