"""The daemon's side of the submit helper: requests go out, a command's result comes back.

Called by launchers (``slurm_plugins.launcher``) for pilots of other users, from the daemon's
threads. The helper is a Unix socket of systemd's, or a command line that starts it (sudo).
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bftrainer.batch import process
from bftrainer.batch.awake import Patience
from bftrainer.batch.batch_system import BatchSystem, PilotRequest
from bftrainer.model.errors import BatchSystemError, BftError, ExitCode
from bftrainer.site.submit.helper import LIMIT_S, MOST_BYTES

if TYPE_CHECKING:  # adapters need no YAML
    from bftrainer.site.policy.model import SitePolicy

PATIENCE_S = LIMIT_S + 5.0
HELPER_SAYS = "The submit helper "  # how our causes begin
_MAY_HAVE_RUN = "BFT-1530"  # the helper's code if a command was begun


class SubmitHelper:
    """Submits and cancels pilots as their users."""

    def __init__(self, where: str) -> None:
        """Say how it is reached: the path of its socket, or a command line."""
        self._where = where

    def submit(
        self, request: PilotRequest, options: Sequence[str], *, site: str, grace_s: float
    ) -> process.Completed:
        """Submit a pilot as its user.

        Args:
            request: with the user and the pilot's files.
            options: of sbatch.
            site: tells our pilots from those of other daemons.
            grace_s: that the batch system leaves a pilot.

        Raises:
            BatchSystemError: BFT-1523, the helper refused; BFT-1524, it cannot be reached.
        """
        order = {
            "do": "submit",
            "user": request.user,
            "pilot": request.pilot_id,
            "site": site,
            "options": list(options),
            "files": dict(request.files),
            "grace_s": grace_s,
        }
        return self._result("sbatch", order)

    def cancel(self, user: str, job_ids: Sequence[str], how: str) -> process.Completed:
        """Cancel a user's pilots: "ask", "end" or "force".

        Raises:
            BatchSystemError: as ``submit``.
        """
        return self._result(
            "scancel", {"do": "cancel", "user": user, "jobs": list(job_ids), "how": how}
        )

    def forget(self, user: str, pilot_id: str, *, site: str) -> None:
        """Remove the files of a user's pilot that has no job.

        Raises:
            BatchSystemError: as ``submit``.
        """
        self._result("rm", {"do": "forget", "user": user, "pilot": pilot_id, "site": site})

    def _result(self, program: str, asked: Mapping[str, Any]) -> process.Completed:
        began = time.monotonic()
        answer = self._answer(json.dumps(asked).encode())
        status, error = answer.get("status"), answer.get("error") or {}
        if error and error.get("code") != _MAY_HAVE_RUN:
            raise BatchSystemError(
                "BFT-1523",
                f"{HELPER_SAYS}does nothing for user {asked['user']}: "
                f"{error.get('cause')} ({error.get('code')}).",
                "See its line in the system's log, and /etc/bftrainer/submit-helper.json.",
            )
        return process.Completed(
            argv=(program,),
            returncode=status if isinstance(status, int) else -1,
            stdout=str(answer.get("stdout", "")),
            stderr=str(error.get("cause") or answer.get("stderr", "")),
            wall_s=time.monotonic() - began,
            timed_out=not isinstance(status, int) and not error,
        )

    def _answer(self, asked: bytes) -> Mapping[str, Any]:
        """Return the helper's answer; empty: it broke off, so nobody knows what was done."""
        is_socket = self._where.startswith("/")
        raw = self._over_socket(asked) if is_socket else self._by_command(asked)
        try:
            answer = json.loads(raw)
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}

    def _over_socket(self, asked: bytes) -> bytes:
        patience, raw = Patience(PATIENCE_S), b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PATIENCE_S)
            try:
                connection.connect(self._where)
            except OSError as problem:
                raise _unreachable(self._where, str(problem.strerror or problem)) from problem
            try:
                connection.sendall(asked)
                connection.shutdown(socket.SHUT_WR)
                while len(raw) <= MOST_BYTES and patience.until_readable(connection.fileno()):
                    chunk = connection.recv(1 << 16)
                    if not chunk:
                        break
                    raw += chunk
            except OSError:
                return b""  # it may have done it
        return raw

    def _by_command(self, asked: bytes) -> bytes:
        completed = process.run(
            shlex.split(self._where),
            timeout_s=PATIENCE_S,
            stdin=asked.decode(),
            output_cap_bytes=MOST_BYTES,
        )
        if not completed.is_ok and not completed.timed_out:
            words = " ".join(completed.stderr.split())[:300] or f"status {completed.returncode}"
            raise _unreachable(self._where, words)
        return completed.stdout.encode()


def no_helper() -> BatchSystemError:
    """Return the error that pilots cannot run as other users."""
    return BatchSystemError(
        "BFT-1521",
        "The policy says 'run_as: submitter', but the batch system has no submit helper.",
        "Set batch_options: submit_helper (docs/howto/slurm-site.md), or 'run_as: daemon'.",
        exit_code=ExitCode.USAGE,
    )


def _unreachable(where: str, why: str) -> BatchSystemError:
    return BatchSystemError(
        "BFT-1524",
        f"{HELPER_SAYS}cannot be reached at '{where}': {why}.",
        "See systemctl status bftrainer-submit.socket, or the rule of sudo (sudo -l).",
    )


def check_run_as(policy: SitePolicy, system: BatchSystem, *, is_own: bool) -> None:
    """Refuse a daemon that could not do so, or would have more rights than it needs.

    Args:
        policy: of the site.
        system: where pilots run.
        is_own: whether it is a user's own daemon (``bftrainer up``).

    Raises:
        BftError: BFT-1521, BFT-1522.
    """
    if not policy.is_for_all:
        return
    if not system.runs_as_users:
        raise no_helper()
    if is_own or os.geteuid() == 0:
        reason = "it would be root's"
        if is_own:
            reason = "a user's own daemon serves one user"
        raise BftError(
            "BFT-1522",
            f"This daemon cannot have 'run_as: submitter': {reason}.",
            "Run the site's daemon as an account of its own (docs/howto/slurm-site.md).",
            exit_code=ExitCode.USAGE,
        )
