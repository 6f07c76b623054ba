"""What ``sdiag`` prints → slurmctld's own load as numbers. Pure; called by ``controller``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VALUE = r"^\s*{name}:\s*([0-9]+)"
_RPC = re.compile(
    r"^\s+(\w+)\s+\(\s*\d+\) count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycles:
    """Passes of one scheduler since the statistics were reset."""

    count: int
    mean_us: float
    max_us: float
    mean_jobs: float  # looked at in a pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Everything of interest in one ``sdiag``."""

    main: Cycles
    backfill: Cycles
    rpcs: dict[str, int]  # by message type
    rpc_us: int  # spent on all of them


def parse(text: str) -> Load:
    """Read the output of Slurm 22.05; a figure that is missing is 0 (no cycle yet)."""
    head, _, backfill_text = text.partition("Backfilling stats")
    backfill, _, rpcs = backfill_text.partition("Remote Procedure Call statistics by message type")
    by_type = _RPC.findall(rpcs.partition("statistics by user")[0])
    return Load(
        main=_cycles(head.partition("Main schedule statistics")[2]),
        backfill=_cycles(backfill),
        rpcs={name: int(count) for name, count, _ in by_type},
        rpc_us=sum(int(total) for _, _, total in by_type),
    )


def _cycles(part: str) -> Cycles:
    def value(name: str) -> int:
        match = re.search(_VALUE.format(name=name), part, re.MULTILINE)
        return int(match[1]) if match else 0

    return Cycles(
        count=value("Total cycles"),
        mean_us=value("Mean cycle"),
        max_us=value("Max cycle"),
        mean_jobs=value("Mean depth cycle") or value("Depth Mean"),
    )
