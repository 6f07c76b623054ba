"""The local batch system behind the ``BatchSystem`` protocol.

Found by its entry point ``local`` and called by the daemon; uses ``client``.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bftrainer.batch.batch_system import (
    BatchSystem,
    OptionError,
    OptionProblem,
    PilotObservation,
    PilotRequest,
)
from bftrainer.batch.clock import now_s
from bftrainer.batch.local.client import LocalClient
from bftrainer.model.cluster import Job, Node, Presence, SchedulerCycle, Snapshot, node_of
from bftrainer.model.errors import BatchSystemError
from milp.plain import Form, codec

DEFAULT_CYCLE_S = 1.0
_FORM = Form()
_UNKNOWN = PilotObservation(presence=Presence.UNKNOWN)


class LocalBatchSystem(BatchSystem):
    """Nodes that are process groups on this machine."""

    name = "local"
    # Its scheduler fills a node that one job leaves to the next within one pass.
    idle_confirmations = 2

    def __init__(self, client: LocalClient) -> None:
        self.cycle_s = DEFAULT_CYCLE_S
        self._client = client
        try:
            self.cycle_s = float(client.info()["cycle_s"])
        except BatchSystemError:
            return  # down for now; each snapshot tells it again

    def request_counts(self) -> Mapping[str, int]:
        """Count nothing: there is no controller whose load matters."""
        return {}

    def snapshot(self, *, wants_cycle: bool = True) -> Snapshot:
        """Poll once; all parts come in one answer, so all fail together."""
        del wants_cycle  # it comes with the rest
        try:
            answer = self._client.snapshot()
            self.cycle_s = float(answer["cycle_s"])
            return Snapshot(
                taken_at_s=answer["now_s"],
                nodes=codec(tuple[Node, ...], _FORM).decode(answer["nodes"]),
                jobs=codec(tuple[Job, ...], _FORM).decode(answer["jobs"]),
                cycle=codec(SchedulerCycle, _FORM).decode(answer["cycle"]),
            )
        except BatchSystemError as problem:
            failure = problem.cause
        except (KeyError, TypeError, ValueError) as problem:
            failure = f"The local batch system gave an answer nobody understands: {problem!r}."
        return Snapshot(
            taken_at_s=now_s(), nodes=None, jobs=None, reservations=None, failures=(failure,)
        )

    def launch_pilot(self, request: PilotRequest) -> str:
        """Submit the pilot and return its job id; raise ``BatchSystemError``."""
        gpus = {}
        if request.part is not None:
            gpus["gpus"] = request.part.gpus
        answer = self._client.request(
            "launch",
            user=getpass.getuser(),
            pilot_id=request.pilot_id,
            node=node_of(request.node),
            **gpus,
            limit_s=request.time_limit_s,
            argv=request.agent_argv,
            log_path=str(request.log_path),
            environment=dict(request.environment),
        )
        return str(answer["job_id"])

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """SIGTERM, or SIGKILL by force; ids of ordinary jobs are left alone."""
        if job_ids:
            self._client.cancel(job_ids, is_force=force, pilots_only=True)

    def pilot_states(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        """Observe each id; a server that does not answer gives ``UNKNOWN``."""
        if not job_ids:
            return {}
        try:
            pilots = self._client.request("pilots", job_ids=list(job_ids))["pilots"]
            read = codec(PilotObservation, _FORM).decode
            return {job_id: read(pilots[job_id]) for job_id in job_ids}
        except (BatchSystemError, KeyError, TypeError, ValueError):
            return dict.fromkeys(job_ids, _UNKNOWN)


def create(options: Mapping[str, Any]) -> LocalBatchSystem:
    """Make the adapter from ``{"socket": path}``.

    Raises:
        OptionError: BFT-1256, the options are not these.
    """
    socket_path = options.get("socket")
    if not isinstance(socket_path, str | Path) or set(options) != {"socket"}:
        problem = OptionProblem(
            path=(next(iter(options.keys() - {"socket"}), "socket"),),
            cause=f"The local batch system takes the option 'socket' alone, not {sorted(options)}.",
            next_step="Give the path of local.sock in the server's directory.",
        )
        raise OptionError("BFT-1256", [problem])
    return LocalBatchSystem(LocalClient(Path(socket_path)))
