"""Pilots with CSM: the words of bsub for a block of compute nodes, and the script with jsrun. Pure.

The script runs on a launch node. ``jsrun`` starts the agent on each compute node of the block, in
one resource set that has all of the node; the launch node has none. The block is one job, so it
comes back whole. Used by ``launcher`` with ``launch: csm``.

Sources: OLCF's Summit user guide ("Easy Mode vs. Expert Mode", "Common jsrun Options", "Known
Issues" on TMPDIR), bsub(1) -csm and -nnodes of LSF 10.1, jsrun and jskill of JSM 10.4, which say
that jsrun propagates signals, but not which. Documented, not tried.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from bftrainer.errors import BatchSystemError, UsageError
from bftrainer.poll.batch_system import PilotRequest
from lsf_adapters.dialect import Dialect
from lsf_adapters.script import taken_by

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")  # safe in a resource requirement


@dataclass(frozen=True, slots=True, kw_only=True)
class Csm:
    """How pilots are started where compute nodes are reached with jsrun."""

    compute: str = "CN"  # resource of compute nodes
    launch: str = "LN"  # resource of launch nodes
    alloc_flags: str = ""  # bsub -alloc_flags, such as "smt4"

    def words(self, nodes: Sequence[str], slots: int) -> tuple[str, ...]:
        """Return the options of bsub for these nodes: expert mode, as easy mode names none.

        Raises:
            BatchSystemError: BFT-1219, a name cannot be part of a requirement.
        """
        for name in nodes:
            if not _HOST.fullmatch(name):
                raise BatchSystemError(
                    "BFT-1219",
                    f"Host {name!r} cannot be named in a resource requirement of LSF.",
                    "Exclude it with the policy's nodes; nothing was submitted.",
                )
        chosen = "||".join(f"hname=={name}" for name in nodes)
        need = (
            f"1*{{select[{self.launch}]span[hosts=1]}} + "
            f"{len(nodes) * slots}*{{select[{self.compute}&&({chosen})]span[ptile={slots}]}}"
        )
        return ("-csm", "y", "-R", need, *self._flags())

    def easy_words(self, n_nodes: int) -> tuple[str, ...]:
        """Return the options of bsub for any nodes: LSF chooses them."""
        return ("-nnodes", str(n_nodes), *self._flags())

    def _flags(self) -> tuple[str, ...]:
        return ("-alloc_flags", self.alloc_flags) if self.alloc_flags else ()

    def check(self, dialect: Dialect) -> None:
        """Refuse an LSF without CSM, which would take the unknown options for the command.

        Raises:
            BatchSystemError: BFT-1219.
        """
        if dialect is not Dialect.IBM:
            raise BatchSystemError(
                "BFT-1219",
                "Pilots cannot be launched with CSM and jsrun: this is not IBM's LSF.",
                "Remove 'launch: csm' from batch_options.",
            )

    def script(self, request: PilotRequest, agent_argv: Sequence[str], *, n_nodes: int = 1) -> str:
        """Return the batch script.

        A signal to leave is passed on as TERM. LSF may have sent it to jsrun, too: an agent that
        hears it twice leaves once.
        """
        log = shlex.quote(str(request.log_path))
        taken = shlex.quote(str(taken_by(request.log_path)))
        return f"""\
#!/bin/sh
exec </dev/null >>{log} 2>&1
if ! mkdir {taken} 2>/dev/null; then
  [ -d {taken} ] || {{ echo "bftrainer: {taken} cannot be made."; exit 1; }}
  exit 0
fi
cd /
unset TMPDIR  # jsrun fails where it is set
step= leave=
trap 'leave=y; [ -z "$step" ] || kill -TERM "$step" 2>/dev/null' TERM INT USR2
{shlex.join((*jsrun_argv(n_nodes), *agent_argv))} &
step=$!
[ -z "$leave" ] || kill -TERM "$step" 2>/dev/null
while :; do
  wait "$step"
  status=$?
  kill -0 "$step" 2>/dev/null || break  # else a signal has interrupted the wait
done
exit "$status"
"""


def jsrun_argv(n_nodes: int) -> tuple[str, ...]:
    """Start one task on each node, with all of its processors and GPUs."""
    return (
        *("jsrun", "--nrs", str(n_nodes), "--rs_per_host", "1", "--tasks_per_rs", "1"),
        *("--cpu_per_rs", "ALL_CPUS", "--gpu_per_rs", "ALL_GPUS"),
        *("--bind", "none"),  # OLCF's default binds a task to one core
    )


def csm_of(launch: str, block_nodes: int, alloc_flags: str = "") -> Csm | None:
    """Return how pilots are launched by the adapter's options; None: on the nodes themselves.

    Raises:
        UsageError: BFT-1218, blocks of several nodes.
    """
    if block_nodes != 1:
        raise UsageError(
            "BFT-1218",
            f"block_nodes is {block_nodes}, but a pilot of bftrainer holds one node.",
            "Set it to 1: blocks that are given back whole are not supported by the daemon.",
        )
    return Csm(alloc_flags=alloc_flags) if launch == "csm" else None
