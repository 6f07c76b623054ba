"""Tries a release of Slurm on one idle node of a site, for ``bftrainer doctor --try-release``.

The adapter's own methods are used, on a system that accepts the release. The one pilot has a token
of its own, so that no daemon takes it for one of its pilots, and is always cancelled at the end.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bftrainer.batch.batch_system import PilotObservation, PilotRequest
from bftrainer.batch.commands import UnreadError
from bftrainer.model.cluster import EndedBy, Node, NodeState, Presence, node_of
from bftrainer.model.errors import BatchSystemError, BftError
from bftrainer.model.hostlist import ParseError
from bftrainer.model.parts import NodePart, gres_of, single_gpu
from bftrainer.model.site import TrialStep
from slurm_plugins import commands, doctor, job_requests
from slurm_plugins.commands import why_failed
from slurm_plugins.launcher import ASK, size_options

if TYPE_CHECKING:
    from slurm_plugins.adapter import SlurmBatchSystem

WAIT_S = 120.0  # for a start, for an end, and for the node
_PAUSE_S = 0.5  # between two questions
_LOOKS_PER_SIGNAL = 20  # slurmd loses a signal that finds the batch step starting: it is sent again
_LIMIT_S = 300.0  # of the pilot
_AGENT = (
    "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]);"
    "signal.sigwait([15]); os._exit(0)"
)
_SIGNALLED = re.compile(r"\bExitCode=(0:15|143:0)\b")
T = TypeVar("T")
_JUDGED = re.compile(r"Job \S+ to start at \S+ .*on nodes? (\S+) in partition (\S+)")


@dataclass(slots=True)
class NodeTrial:
    """The steps, in order; a later one needs those before it."""

    system: SlurmBatchSystem  # one that accepts the release
    release: str
    partition: str  # of pilots
    _node: Node = field(default_factory=lambda: Node(name="", state=NodeState.UNKNOWN))
    _part: NodePart | None = None  # that the pilot asks for; None: the whole node
    _job_id: str = ""

    def steps(self) -> Iterator[TrialStep]:
        """Yield each step, up to the first that fails.

        Raises:
            BatchSystemError: BFT-1573, no node is idle, and nothing was submitted.
        """
        try:
            for title, step in (
                ("answers are read", self._read),
                ("sbatch --test-only", self._judge),
                ("submit a pilot", self._submit),
                ("it starts", self._start),
                ("it is seen", self._see),
                ("it leaves when asked", self._leave),
                ("cancel what is gone", self._cancel),
                ("its node is idle again", self._is_idle),
            ):
                try:
                    result, is_passed = step(), True
                except (ParseError, BftError) as problem:
                    if isinstance(problem, BftError) and problem.code == "BFT-1573":
                        raise
                    result, is_passed = str(problem), False
                yield TrialStep(what=title, seen=result, is_passed=is_passed)
                if not is_passed:
                    return
        finally:
            if self._job_id:
                with suppress(BftError):
                    self.system.cancel_pilots([self._job_id], force=True)

    def _read(self) -> str:
        look = self.system.snapshot()
        if look.failures or look.nodes is None or look.jobs is None:
            raise ParseError(" ".join(look.failures) or "no nodes, or no jobs")
        requests = self.system.commands.query(commands.asked_argv(self.release))
        partitions = self.system.commands.query(doctor.PARTITION_ARGV)
        for answer in (requests, partitions):
            if not answer.is_ok:
                raise UnreadError(why_failed(answer))
        job_requests.rows(requests.stdout, self.release)
        if self.partition not in doctor.partitions_in(partitions.stdout):
            raise ParseError(f"scontrol does not show partition {self.partition}")
        node = next((node for node in look.nodes if node.state is NodeState.IDLE), None)
        if node is None:
            raise BatchSystemError(
                "BFT-1573",
                f"No node of partition {self.partition} is idle, so nothing was tried.",
                "Repeat it when sinfo shows an idle node.",
            )
        self._node, self._part = node, _part_of(node)
        return f"{len(look.nodes)} nodes, {len(look.jobs)} jobs"

    def _judge(self) -> str:
        node = node_of(self._node.name)
        argv = (
            *("sbatch", "--test-only", f"--partition={self.partition}", "--nodes=1", "--time=5"),
            *(f"--nodelist={node}", "--chdir=/", *size_options(self._part)),
        )
        environment = self.system.commands.base_environment()
        answer = self.system.commands.run(argv, environment, stdin="#!/bin/sh\n")
        judgement = _JUDGED.search(answer.stderr)
        if not answer.is_ok or judgement is None:
            raise ParseError(why_failed(answer))
        if judgement.groups() != (node, self.partition):
            raise ParseError(why_failed(answer))
        return f"would start on {node}"

    def _submit(self) -> str:
        self._job_id = self.system.launch_pilot(
            PilotRequest(
                pilot_id="p000000",
                node=self._node.name,
                part=self._part,
                time_limit_s=_LIMIT_S,
                agent_argv=(sys.executable, "-I", "-c", _AGENT),
                log_path=Path("/dev/null"),
            )
        )
        if self._part is not None:
            return f"job {self._job_id} with {gres_of(self._part)}"
        return f"job {self._job_id}"

    def _start(self) -> str:
        def look() -> str:
            pilot = self._observed()
            if pilot.presence is Presence.ABSENT:
                raise ParseError(f"it ended: {pilot.reason or 'no reason is said'}")
            if pilot.phase != "running":
                return ""
            return pilot.node or ""

        node = _until(look, "it does not run")
        if node != node_of(self._node.name):
            raise ParseError(f"it runs on {node}, not on {self._node.name}")
        return f"on {node}"

    def _see(self) -> str:
        def look() -> bool:
            snapshot = self.system.snapshot()
            pilots = {job.job_id: job.nodes for job in snapshot.jobs or () if job.pilot_id}
            states = {node.name: node.state for node in snapshot.nodes or ()}
            is_held = states.get(self._node.name) is NodeState.ALLOCATED
            return is_held and pilots.get(self._job_id) == (self._node.name,)

        _until(look, "no look shows it as a pilot on its node")
        return f"a pilot on {self._node.name}"

    def _leave(self) -> str:
        self.system.cancel_pilots([self._job_id])
        looks = count(1)

        def look() -> PilotObservation | None:
            if next(looks) % _LOOKS_PER_SIGNAL == 0:  # not cancel_pilots: the second would end it
                self.system.commands.query(("scancel", *ASK, self._job_id))
            pilot = self._observed()
            if pilot.presence is not Presence.ABSENT:
                return None
            return pilot

        ended = _until(look, "it does not leave")
        if ended.ended_by is EndedBy.ITSELF and not ended.has_failed:
            return "it saw the signal and left"
        if ended.ended_by is EndedBy.ITSELF and self._is_signalled():
            return "the signal ended it"
        raise ParseError(f"it was ended ({ended.reason}) and did not see the signal")

    def _is_signalled(self) -> bool:
        """Whether SIGTERM ended it: it came before Python had blocked it."""
        answer = self.system.commands.query(["scontrol", "-o", "show", "job", self._job_id])
        return bool(_SIGNALLED.search(answer.stdout))

    def _cancel(self) -> str:
        self.system.cancel_pilots([self._job_id])
        return "no error"

    def _is_idle(self) -> str:
        def look() -> bool:
            nodes = self.system.snapshot().nodes or ()
            return any(n.name == self._node.name and n.state is NodeState.IDLE for n in nodes)

        _until(look, f"{self._node.name} is not idle")
        return self._node.name

    def _observed(self) -> PilotObservation:
        return self.system.pilot_states([self._job_id])[self._job_id]


def _part_of(node: Node) -> NodePart | None:
    """Return a GPU of an idle node, if pilots may have it without the others."""
    lent = next((gpus for gpus in node.lends if gpus.n_free), None)
    if lent is None:
        return None
    return single_gpu(node, lent)


def _until(look: Callable[[], T | None], otherwise: str) -> T:
    """Return the first answer that is true; raises ``ParseError``: there was none in time."""
    deadline_s = time.monotonic() + WAIT_S
    while not (answer := look()):
        if time.monotonic() >= deadline_s:
            raise ParseError(f"{otherwise} after {WAIT_S:.0f} s")
        time.sleep(_PAUSE_S)
    return answer
