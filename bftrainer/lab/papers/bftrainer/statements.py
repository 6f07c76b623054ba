"""The three values of U in the abstract and section 5.1: 75%, 80% and up to 93%."""

from __future__ import annotations

from bftrainer.lab.papers.bftrainer import diverse
from bftrainer.lab.papers.bftrainer.forward_time import sweep
from bftrainer.lab.papers.bftrainer.replays import HEURISTIC, MILP, PaperReplay, Record
from bftrainer.lab.papers.bftrainer.runtimes import all_p_jmax
from bftrainer.lab.papers.bftrainer.scenario import DIVERSE, EXPECTED, Sweeps
from bftrainer.lab.papers.bftrainer.six_hours import linear_u
from bftrainer.lab.papers.findings import Reproduced
from bftrainer.lab.papers.paper import Records

P_JMAX_OF_TRIALS = (5, 15, 20, 25, 30, 35)  # of identical trials, besides 10


def _settings(extent: Sweeps) -> tuple[PaperReplay, ...]:
    trials = tuple(PaperReplay(p_jmax=p) for p in P_JMAX_OF_TRIALS if p in extent.p_jmax)
    return (*all_p_jmax(extent), *trials, *sweep(extent))


def runs(extent: Sweeps) -> tuple[PaperReplay, ...]:
    """Return the heuristic, and all settings of which the abstract names the best."""
    return (HEURISTIC, *_settings(extent))


def _u(record: Record) -> float:
    return diverse.utilization(record) if record.run.workload == DIVERSE else record.u


def find(records: Records, extent: Sweeps) -> Reproduced:
    """Compare 75% (heuristic), 80% (mean of the MILP) and 93% (best)."""
    best = max(_settings(extent), key=lambda run: _u(records[run]))
    return Reproduced(
        lines=(
            EXPECTED.line("statements", "heuristic", records[HEURISTIC].u),
            EXPECTED.line("statements", "mean", float(linear_u(records[MILP]).mean())),
            EXPECTED.line(
                "statements",
                "best",
                _u(records[best]),
                workload="diverse" if best.workload == DIVERSE else best.workload,
                p_jmax=best.p_jmax,
            ),
        )
    )
