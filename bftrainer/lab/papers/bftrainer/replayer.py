"""U beside another program's exact replay of the published bookkeeping."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.lab.papers.bftrainer.replays import HEURISTIC, MILP, PaperReplay
from bftrainer.lab.papers.bftrainer.scenario import EXPECTED, Sweeps
from bftrainer.lab.papers.findings import Reproduced
from bftrainer.lab.papers.paper import Records

TABLE = EXPECTED.tables["exact-replay"]
TIMES: list[float] = TABLE["columns"]


def runs(extent: Sweeps) -> tuple[PaperReplay, ...]:
    """Return the replays that the other program played, nodes by name and at random."""
    by_name = (HEURISTIC, *(PaperReplay(t_fwd_s=t) for t in TIMES if t in extent.t_fwd_s))
    return (*by_name, *(replace(run, is_any_node=True) for run in by_name))


def find(records: Records, extent: Sweeps) -> Reproduced:
    """Compare U."""
    lines = []
    for run in runs(extent):
        is_milp = run.policy == MILP.policy
        row = TABLE["rows"]["MILP" if is_milp else "heuristic"]
        lines.append(
            EXPECTED.line(
                "exact-replay",
                "U",
                records[run].u,
                paper=row[TIMES.index(run.t_fwd_s)],
                of=f"MILP, T_fwd {run.t_fwd_s:g} s" if is_milp else "heuristic",
                nodes="at random" if run.is_any_node else "by name",
            )
        )
    return Reproduced(lines=tuple(lines))
