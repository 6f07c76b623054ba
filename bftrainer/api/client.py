"""Client of the daemon's API: HTTP over its Unix socket.

Returns views; every failure is a ``BftError``, whether the daemon or the socket raised it. Standard
library only, so that a verb starts fast.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import math
import os
import re
import socket
import struct
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bftrainer.api import address
from bftrainer.api.documents import (
    CodecError,
    encode,
    encode_request,
    error_of,
    parse,
    schema,
    trials_document,
    view_of,
    views_of,
)
from bftrainer.model.errors import BftError, ExitCode, NoDaemonError
from bftrainer.model.study import Seen, StudyCount, StudyView, TrialView
from bftrainer.model.timeline import TimelineView
from bftrainer.model.trainer import TrainerChange, TrainerSpec
from bftrainer.model.views import (
    DrainView,
    Explanation,
    LogFile,
    NodeView,
    ReloadView,
    StatusView,
    TrainerView,
)

if TYPE_CHECKING:
    from bftrainer.model.reports import AccountReport, HarmReport

DEFAULT_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 1 << 16
_TRAINER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
T = TypeVar("T")


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to the path of a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A blocking connect waits in the kernel while the backlog is full. With Python's timeout
        # the socket would be non-blocking and refused at once.
        seconds = struct.pack("ll", math.ceil(self.timeout or 0), 0)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        try:
            self.sock.connect(str(self._path))
        except BlockingIOError as problem:
            raise TimeoutError from problem
        self.sock.settimeout(self.timeout)


class Client:
    """One daemon; each call is one connection, so that a restart of the daemon does not matter."""

    def __init__(self, socket_path: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.socket_path = socket_path
        self._timeout_s = timeout_s

    def status(self) -> StatusView:
        """Return the daemon's state."""
        return self._view(StatusView, "status", "/v1/status")

    def nodes(self) -> tuple[NodeView, ...]:
        """Return every node of the last snapshot."""
        return self._views(NodeView, "nodes", "/v1/nodes")

    def timeline(self, seen: Seen | None = None, *, wait_s: int = 10) -> TimelineView:
        """Return the uses of all nodes of late; with ``seen`` what is new, when something is.

        Without anything new the answer comes after ``wait_s``, at most 10 s.
        """
        query = ""
        if seen is not None:
            query = f"{_asked(seen)}&wait_s={wait_s}"
        return self._view(TimelineView, "timeline", f"/v1/timeline{query}")

    def trainers(self) -> tuple[TrainerView, ...]:
        """Return all trainers in order of submission."""
        return self._views(TrainerView, "trainers", "/v1/trainers")

    def trainer(self, trainer_id: str) -> TrainerView:
        """Return one trainer; BFT-1004 if there is none."""
        return self._view(TrainerView, "trainer", _path(trainer_id))

    def explain(self, trainer_id: str) -> Explanation:
        """Say why the trainer has this size or does not run."""
        return self._view(Explanation, "explain", f"{_path(trainer_id)}/explain")

    def logs(self, trainer_id: str) -> tuple[LogFile, ...]:
        """Return its log files, oldest first."""
        return self._views(LogFile, "logs", f"{_path(trainer_id)}/logs")

    def harm(self, since_s: float | None) -> HarmReport:
        """Summarise the effect on ordinary jobs since then; None: since the start."""
        from bftrainer.model.reports import HarmReport  # noqa: PLC0415 - slow, and for this alone

        query = ""
        if since_s is not None:
            query = f"?since_s={since_s:.3f}"
        return self._view(HarmReport, "harm", f"/v1/harm{query}")

    def account(self, *, by: Sequence[str], since: str = "", until: str = "") -> AccountReport:
        """Say who used what on these days; "": from the first, until today."""
        from bftrainer.model.reports import AccountReport  # noqa: PLC0415 - likewise

        parameters = {"by": ",".join(by), "since": since, "until": until}
        query = urllib.parse.urlencode({name: text for name, text in parameters.items() if text})
        return self._view(AccountReport, "account", f"/v1/account?{query}")

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        status, text = self._exchange("GET", "/metrics", None)
        if status != http.client.OK:
            raise _error_in(status, text)
        return text.decode(errors="replace")

    def submit(self, spec: TrainerSpec) -> TrainerView:
        """Submit a trainer; it is durable when this returns."""
        body = {"schema": schema("submit"), "spec": encode_request(spec)}
        return self._view(TrainerView, "trainer", "/v1/trainers", method="POST", body=body)

    def cancel(self, trainer_id: str, *, now: bool = False) -> TrainerView:
        """End a trainer, after a checkpoint unless ``now``; BFT-1005: not the user's own."""
        path = f"{_path(trainer_id)}{'?now=1' if now else ''}"
        return self._view(TrainerView, "trainer", path, method="DELETE")

    def change(self, trainer_id: str, change: TrainerChange) -> TrainerView:
        """Hold, release or update a trainer; BFT-1043 if it has ended."""
        values = {name: value for name, value in encode(change).items() if value is not None}
        body = {"schema": schema("change"), "change": values}
        return self._view(TrainerView, "trainer", _path(trainer_id), method="PATCH", body=body)

    def studies(self) -> tuple[StudyCount, ...]:
        """Return the user's studies."""
        return self._views(StudyCount, "studies", "/v1/studies")

    def study(self, study: str, *, seen: Seen | None = None, wait_s: int = 10) -> StudyView:
        """Return a study's trials; with ``seen`` those that have changed since, when one has.

        Without a change the answer comes after ``wait_s``, at most 10 s. Progress is no change.
        """
        query = ""
        if seen is not None:
            query = f"{_asked(seen)}&wait_s={wait_s}"
        return self._view(StudyView, "study", f"{_study_path(study)}{query}")

    def submit_trials(self, specs: Sequence[TrainerSpec]) -> tuple[TrialView, ...]:
        """Submit trials of one study, all or none; those that are there stay as they are."""
        study = specs[0].trial.study if specs[0].trial is not None else ""
        body, path = trials_document(specs), f"{_study_path(study)}/trials"
        return self._views(TrialView, "trials", path, method="POST", body=body)

    def requeue(self, trainer_id: str) -> TrainerView:
        """Start it again; the answer is a new trainer if this one has ended."""
        path = f"{_path(trainer_id)}/requeue"
        return self._view(TrainerView, "trainer", path, method="POST")

    def reload_policy(self) -> ReloadView:
        """Have the daemon read its policy again."""
        return self._view(ReloadView, "reload", "/v1/policy/reload", method="POST")

    def drain(self, limit_s: float) -> DrainView:
        """Give all nodes back within the limit, and take none until ``resume``."""
        body = {"schema": schema("drain"), "limit_s": limit_s}
        return self._view(DrainView, "drain", "/v1/drain", method="POST", body=body)

    def resume(self) -> bool:
        """Take nodes again; False: this daemon is about to end, and the next one does."""
        answer = self._request("POST", "/v1/resume")
        return not answer.get("is_ending", False)  # an earlier release does not say it

    def shutdown(self, release: str = "") -> None:
        """Stop the daemon; trainers continue until their lease ends.

        Args:
            release: all nodes first: "saved", after last checkpoints; "now", at once.
        """
        body = {"schema": schema("shutdown")}
        if release:
            body["release"] = release
        self._request("POST", "/v1/shutdown", body)

    def _view(
        self, cls: type[T], name: str, path: str, *, method: str = "GET", body: Any = None
    ) -> T:
        answer = self._request(method, path, body)
        try:
            return view_of(cls, name, answer)
        except CodecError as problem:
            raise _not_understood(problem) from problem

    def _views(
        self, cls: type[T], name: str, path: str, *, method: str = "GET", body: Any = None
    ) -> tuple[T, ...]:
        answer = self._request(method, path, body)
        try:
            return views_of(cls, name, answer)
        except CodecError as problem:
            raise _not_understood(problem) from problem

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        status, text = self._exchange(method, path, body)
        try:
            answer = parse(text)
        except CodecError as problem:
            raise _not_understood(problem) from problem
        if status < http.client.BAD_REQUEST:
            return answer
        raise _error_of(status, answer)

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        self._check_path()
        headers = {"Accept": "application/json", "Connection": "close"}
        text = None
        if body is not None:
            text = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            # The daemon may stop reading a request that is too long; its answer is still readable.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, body=text, headers=headers)
            with connection.getresponse() as response:
                return response.status, self._read(response)
        except TimeoutError as problem:
            raise self._too_slow() from problem
        except OSError as problem:
            raise self._unreachable(problem) from problem
        except http.client.HTTPException as problem:
            raise _not_understood(CodecError("", f"is not HTTP ({problem!r})")) from problem
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        return _UnixConnection(self.socket_path, self._timeout_s)

    def _check_path(self) -> None:
        address.check_length(self.socket_path)
        try:
            info = self.socket_path.lstat()
            # Root may use any user's daemon, other users only their own or the site's.
            uid: int | None = info.st_uid
            if os.geteuid() != 0:
                uid = address.site_uid(self.socket_path.parent)
            address.check_socket(self.socket_path, uid=uid)
            address.check_directory(self.socket_path.parent, uid=uid)
        except OSError as problem:
            raise self._unreachable(problem) from problem

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        # The time limit is for the whole answer, not for each piece.
        deadline = time.monotonic() + self._timeout_s
        answer, length = bytearray(), response.length
        while chunk := response.read1(_CHUNK_BYTES):
            answer += chunk
            if len(answer) > MAX_ANSWER_BYTES:
                raise _not_understood(CodecError("", "is longer than any answer of a daemon"))
            if time.monotonic() > deadline:
                raise self._too_slow()
        # ``read1`` does not say that the daemon died in the middle of an answer.
        if length is not None and len(answer) < length:
            raise self._unreachable(ConnectionResetError(errno.ECONNRESET, "it ended meanwhile"))
        return bytes(answer)

    def _too_slow(self) -> BftError:
        return BftError(
            "BFT-1105",
            f"The daemon at {self.socket_path} did not answer within {self._timeout_s:g} s.",
            "Try again; if this persists, check the daemon's log.",
            exit_code=ExitCode.TIMEOUT,
        )

    def _unreachable(self, problem: OSError) -> BftError:
        why = problem.strerror or str(problem) or type(problem).__name__
        next_step = (
            "If you have none: start your own with 'bftrainer up' on a cluster with a preemptable "
            "partition; elsewhere 'bftrainer try SCRIPT' needs none. One that runs is named with "
            "--socket, BFTRAINER_SOCKET or BFTRAINER_STATE_DIR."
        )
        is_closed, is_of_site = isinstance(problem, PermissionError), self._is_of_site
        if is_closed:
            next_step = (
                "If its socket is closed to you: ask its administrator, as it serves all users "
                "with 'run_as: submitter'."
            )
        elif is_of_site:
            next_step = "If it is the site's: tell its administrator, who finds why in its log."
        kind: type[BftError] = NoDaemonError
        if is_closed:
            kind = BftError
        error = kind(
            "BFT-1101",
            f"No daemon can be reached at {self.socket_path} ({why}).",
            next_step,
            exit_code=ExitCode.DAEMON_UNREACHABLE,
        )
        if isinstance(error, NoDaemonError):
            error.is_of_site = is_of_site
        return error

    @property
    def _is_of_site(self) -> bool:
        return self.socket_path == address.SITE_SOCKET


def _path(trainer_id: str) -> str:
    if not _TRAINER_ID.fullmatch(trainer_id):
        raise BftError(
            "BFT-1004",
            f"{trainer_id[:40]!r} is not the id of a trainer.",
            "Look for it in 'bftrainer status'; ids are t1, t2 and so on.",
            exit_code=ExitCode.NOT_FOUND,
        )
    return f"/v1/trainers/{trainer_id}"


def _asked(seen: Seen) -> str:
    return f"?seen={seen.change}&incarnation={seen.incarnation}"


def _study_path(study: str) -> str:
    return f"/v1/studies/{urllib.parse.quote(study, safe='')}"


def _error_of(status: int, answer: Any) -> BftError:
    return error_of(answer) or _not_understood(
        CodecError("", f"is an error {status} without a code")
    )


def _error_in(status: int, text: bytes) -> BftError:
    try:
        return _error_of(status, parse(text))
    except CodecError as problem:
        return _not_understood(problem)


def _not_understood(problem: CodecError) -> BftError:
    return BftError(
        "BFT-1106",
        f"The daemon's answer was not understood: {problem}.",
        "Use the bftrainer command of the daemon's version.",
    )
