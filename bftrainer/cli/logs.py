"""``bftrainer logs ID``: print the logs of a trainer's workers.

Without a choice, the end of one: of rank 0, or of the worker at whose failure the trainer was given
up. The files are listed and read here, with the caller's rights, and copied unchanged to standard
output; the daemon tells which worker wrote which.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from bftrainer.api.client import Client
from bftrainer.api.documents import listing
from bftrainer.cli.common import AWAY, connect
from bftrainer.cli.options import JSON, SOCKET, option, trainer_ids, verb
from bftrainer.cli.output import print_json, print_lines, print_table
from bftrainer.ground.regular_file import open_file
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerRecord, TrainerState
from bftrainer.model.views import LogFile

FOLLOW_INTERVAL_S = 0.25
ASK_INTERVAL_S = 2.0  # how often the daemon is asked for new files
TAIL_LINES = 50
MOST_LINES = 10_000
_LINE_BYTES = 1024  # on average at most, where lines are counted from the end
_CHUNK_BYTES = 1 << 16
HEADERS = ("WORKER", "NODE", ">RANK", ">GENERATION", "FILE")


@verb(
    trainer_ids(),
    option("--rank", "Only the workers of this rank.", click.IntRange(min=0)),
    option("--generation, -g", "Only the workers that joined in this generation: a fixed group "
           "of workers, by number.",
           click.IntRange(min=0)),
    option("--all, -a", "All workers, oldest first.", name="is_all"),
    option("-n LINES", "Only the last lines of each.  "
           f"[default: {TAIL_LINES} without another option, else all]",
           click.IntRange(min=1, max=MOST_LINES), name="n_lines"),
    option("--follow, -f", "Go on until the trainer ends."),
    option("--list", "Name the files instead of printing them.", name="as_list"),
    JSON, SOCKET,
    example="bftrainer logs t1 --follow",
)  # fmt: skip
def logs(
    trainer_id: str,
    rank: int | None,
    generation: int | None,
    n_lines: int | None,
    socket_name: str | None,
    *,
    is_all: bool,
    follow: bool,
    as_list: bool,
    as_json: bool,
) -> None:
    """Print what the workers of the trainer ID wrote.

    Without options that choose: the last lines of rank 0, or of the worker at whose failure
    the trainer was given up.
    """
    client = connect(socket_name)
    owner = _uid_of(client.trainer(trainer_id).record.spec.user)

    def matching_files() -> tuple[LogFile, ...]:
        return tuple(
            item
            for item in _all_files(client, trainer_id)
            if rank in (None, item.rank) and generation in (None, item.generation)
        )

    files = matching_files()
    if as_json:
        print_json(listing("logs", files, trainer_id=trainer_id))
    elif as_list:
        print_table(HEADERS, list(map(_row, files)))
    elif follow:
        _follow(client, trainer_id, matching_files, owner)
    elif is_all or rank is not None or generation is not None:
        _print_all(trainer_id, files, n_lines, owner)
    else:
        choice = _first_choice(client.trainer(trainer_id).record, files)
        _print_all(trainer_id, choice, n_lines or TAIL_LINES, owner)
        if len(files) > 1:
            name, n_more = shown(choice[0].worker_id), len(files) - 1
            print_lines(f"({name}; --all prints {n_more} more, --list names them)", err=True)


def _uid_of(user: str) -> int | None:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(user).pw_uid
    return None


def _all_files(client: Client, trainer_id: str) -> tuple[LogFile, ...]:
    """Return all files: those that we see, with what the daemon knows; it may not see them."""
    from bftrainer.fleet.trainers.log_files import log_files  # noqa: PLC0415 - pydantic is slow

    of_daemon = client.logs(trainer_id)
    of_worker = {item.worker_id: item for item in of_daemon}
    visible = log_files(trainer_id, client.trainer(trainer_id).record.spec, {})
    return tuple(of_worker.get(item.worker_id, item) for item in visible) or of_daemon


def _first_choice(record: TrainerRecord, files: tuple[LogFile, ...]) -> tuple[LogFile, ...]:
    """Return the file that a user wants to see first."""
    best: list[LogFile] = []
    if record.state is TrainerState.FAILED:
        best = [item for item in files if item.path == record.failing.log_path]
    best = best or [item for item in files if item.rank == 0]
    # Rank 0 writes last; of trainers that have ended the ranks are not known.
    best = best or sorted(files, key=_written_s)
    return tuple(best[-1:])


def _written_s(item: LogFile) -> float:
    try:
        return Path(item.path).stat().st_mtime
    except OSError:
        return 0.0


def _row(item: LogFile) -> tuple[str, ...]:
    rank = "-" if item.rank is None else str(item.rank)
    return (item.worker_id, item.node, rank, str(item.generation), item.path)


class _Output:
    """Standard output with a header wherever another file begins, as tail does."""

    def __init__(self, *, has_headers: bool) -> None:
        self._has_headers = has_headers
        self._last: str | None = None
        self._stream = sys.stdout.buffer

    def write(self, item: LogFile, chunk: bytes) -> None:
        if self._has_headers and item.path != self._last:
            if self._last is not None:
                self._stream.write(b"\n")
            worker = f"{shown(item.worker_id)} on {shown(item.node)}"
            if item.rank is not None:
                worker += f", rank {item.rank}"
            self._stream.write(f"==> {worker} <==\n".encode())
        self._last = item.path
        self._stream.write(chunk)
        self._stream.flush()


def _print_all(
    trainer_id: str, files: tuple[LogFile, ...], n_lines: int | None, owner: int | None
) -> None:
    if not files:
        print_lines(
            f"{trainer_id} has no matching log files yet: none of its workers has started, or none"
            f" is meant; 'bftrainer explain {trainer_id}' says why it waits",
            err=True,
        )
        return
    output = _Output(has_headers=len(files) > 1)
    problems = []
    for item in files:
        try:
            descriptor = open_file(item.path, owner_uid=owner)
        except OSError as problem:
            problems.append(f"{item.path}: {problem.strerror}")
            print_lines(f"warning: {shown(problems[-1])}", err=True)
            continue
        try:
            if n_lines is not None:
                _seek_lines(descriptor, n_lines)
            _copy([(item, descriptor)], output)
        finally:
            os.close(descriptor)
    if len(problems) == len(files):
        raise _unreadable(
            f"None of the {len(files)} log files of {trainer_id} can be read "
            f"(the last: {problems[-1]})."
        )


def _seek_lines(descriptor: int, n_lines: int) -> None:
    """Move to the beginning of the last lines; long ones may be cut."""
    start = max(0, os.fstat(descriptor).st_size - n_lines * _LINE_BYTES)
    os.lseek(descriptor, start, os.SEEK_SET)
    text = b""
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        text += chunk
    last = b"".join(text.splitlines(keepends=True)[-n_lines:])
    os.lseek(descriptor, start + len(text) - len(last), os.SEEK_SET)


def tail(client: Client, trainer_id: str, n_lines: int = TAIL_LINES) -> list[str]:
    """Return the name of the log that a user wants to see first, and its last lines.

    They are not escaped yet.

    Raises:
        BftError: BFT-1012, it cannot be read; those of the client.
    """
    record = client.trainer(trainer_id).record
    for item in _first_choice(record, _all_files(client, trainer_id)):
        descriptor = _try_open(item.path, _uid_of(record.spec.user))
        if descriptor is not None:
            try:
                _seek_lines(descriptor, n_lines)
                text = os.read(descriptor, n_lines * _LINE_BYTES)
            except OSError as problem:
                raise _unreadable(f"{item.path} cannot be read ({problem.strerror}).") from problem
            finally:
                os.close(descriptor)
            lines = text.decode(errors="replace").replace("\t", "    ").splitlines()
            return [f"{item.worker_id} on {item.node or 'a node'}", *lines[-n_lines:]]
    return ["no worker has written anything yet"]


def _unreadable(cause: str) -> BftError:
    return BftError(
        "BFT-1012",
        cause,
        "See where the files are with 'bftrainer logs --list', and run this as their owner "
        "where that file system is mounted.",
        exit_code=ExitCode.NOT_FOUND,
    )


def _follow(
    client: Client,
    trainer_id: str,
    matching_files: Callable[[], tuple[LogFile, ...]],
    owner: int | None,
) -> None:
    """Print what is added to a trainer's files until the trainer has ended."""
    output = _Output(has_headers=True)
    ask_at_s = 0.0  # of the monotonic clock
    has_ended = is_told = False
    files: dict[str, tuple[LogFile, int]] = {}
    with contextlib.ExitStack() as opened:
        while True:
            if time.monotonic() >= ask_at_s:
                items: tuple[LogFile, ...] = ()
                try:
                    has_ended = client.trainer(trainer_id).record.state.is_final
                    items = matching_files()
                    is_told = False
                except BftError as error:
                    if error.exit_code not in AWAY:
                        raise
                    if not is_told:  # trainers and their logs outlive a daemon
                        print_lines(f"warning: {shown(error.cause)} Waiting for it.", err=True)
                    has_ended, is_told = False, True
                for item in items:
                    if item.path not in files and (file := _try_open(item.path, owner)) is not None:
                        opened.callback(os.close, file)
                        files[item.path] = item, file
                ask_at_s = time.monotonic() + ASK_INTERVAL_S
            # If it had ended before this read, nothing more will be written.
            if not _copy(files.values(), output) and has_ended:
                return
            time.sleep(FOLLOW_INTERVAL_S)


def _copy(files: Iterable[tuple[LogFile, int]], output: _Output) -> bool:
    """Copy what was added to files; return whether anything was."""
    has_read = False
    for item, descriptor in files:
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            output.write(item, chunk)
            has_read = True
    return has_read


def _try_open(path: str, owner: int | None) -> int | None:
    try:
        return open_file(path, owner_uid=owner)
    except FileNotFoundError:
        return None  # named before its worker has written anything
    except OSError as problem:
        raise _unreadable(f"{path} cannot be read ({problem.strerror}).") from problem
