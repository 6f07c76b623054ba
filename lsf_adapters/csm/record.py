"""Records idle nodes: runs ``bslots`` and ``jobstat`` at fixed times and appends what they say.

The command line calls ``record``. A poll that fails is left out of the recording, except for the
first one: then nothing would ever be recorded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bftrainer.errors import BatchSystemError
from bftrainer.hostlist import ParseError
from bftrainer.poll.commands import why_failed
from lsf_adapters import bslots
from lsf_adapters.commands import LsfCommands
from lsf_adapters.csm import jobstat
from lsf_adapters.csm.idle import EVERY_S, Poll, poll_of
from lsf_adapters.csm.polls import line_of

LOG = logging.getLogger("bftrainer.lsf.csm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the commands must be told about a machine; Summit's values."""

    slots_per_node: int = 42
    resource: str = "CN"  # of compute nodes
    jobstat: str = "jobstat"  # OLCF's command; a path where it is not in $PATH


def look(lsf: LsfCommands, machine: Machine, at_s: float) -> Poll:
    """Poll once.

    Raises:
        ParseError: a command failed, or printed something else.
    """
    jobs = jobstat.jobstat(_answer(lsf, (machine.jobstat,)))
    # bslots is the second one: what has got a job since jobstat ran is not idle in it.
    found = bslots.windows(_answer(lsf, bslots.argv(machine.resource)))
    return poll_of(at_s, found, jobs, slots_per_node=machine.slots_per_node)


def _answer(lsf: LsfCommands, argv: tuple[str, ...]) -> str:
    done = lsf.query(argv)
    if not done.is_ok and not done.timed_out and "No backfill window" in done.stdout + done.stderr:
        return "No backfill window\n"
    if not done.is_ok:
        raise ParseError(why_failed(done))
    return done.stdout


def record(
    lsf: LsfCommands,
    machine: Machine,
    out: Path,
    *,
    every_s: float = EVERY_S,
    n_polls: int | None = None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Poll until ``n_polls`` are recorded (None: for ever); return how many failed.

    Raises:
        BatchSystemError: BFT-1228, the first poll failed.
        OSError: the recording cannot be written.
    """
    n_failed = n_done = 0
    with out.open("a", encoding="utf-8") as file:
        next_s = clock()
        while n_polls is None or n_done < n_polls:
            at_s = clock()
            try:
                file.write(line_of(look(lsf, machine, at_s)))
                file.flush()
                n_done += 1
            except ParseError as problem:
                if not n_done:
                    raise _useless(problem) from problem
                n_failed += 1
                LOG.warning("a poll is left out: %s", problem)
            # Fixed times; those that a slow answer has missed are left out.
            next_s += every_s * max(1.0, (clock() - next_s) // every_s + 1.0)
            if n_polls is None or n_done < n_polls:
                sleep(max(0.0, next_s - clock()))
    return n_failed


def _useless(problem: ParseError) -> BatchSystemError:
    return BatchSystemError(
        "BFT-1228",
        f"Idle nodes cannot be recorded here: {problem}",
        "It needs bslots (LSF 10.1) and OLCF's jobstat; name the latter with --jobstat.",
    )
