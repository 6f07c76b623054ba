"""The lead of elastic batches over the baseline, with one assumption changed at a time."""

from __future__ import annotations

from bftrainer.lab.papers.findings import Reproduced, Table, ValueLine
from bftrainer.lab.papers.ibm.replays import FREE, Experiment, SensitivityRow
from bftrainer.lab.papers.ibm.setting import EXPECTED, IbmSeeds
from bftrainer.lab.papers.ibm.tables import CELLS, experiments, means
from bftrainer.lab.papers.paper import Records

CHANGES = (
    SensitivityRow(name="free fit: category 1 need not scale best", fit=FREE),
    SensitivityRow(name="the largest batch fits one GPU", largest_batch_fits=True),
    SensitivityRow(name="t_comm halved", network=0.5),
    SensitivityRow(name="t_comm doubled", network=2.0),
    SensitivityRow(name="k_max 20", k_max=20),
    SensitivityRow(name="decisions every 10 min", delta_min=10.0),
    SensitivityRow(name="decisions every 15 min", delta_min=15.0),
    SensitivityRow(name="arrivals of the text, per GPU", arrivals=(1.0, 0.25)),
    SensitivityRow(name="arrivals never overtake", overtakes=False),
    SensitivityRow(name="who waits may be overtaken", passes_over=True),
)


def runs(extent: IbmSeeds) -> tuple[Experiment, ...]:
    """Return the experiments of Table III for each change."""
    return tuple(run for change in CHANGES for run in _runs(change, extent))


def _runs(change: SensitivityRow, extent: IbmSeeds) -> tuple[Experiment, ...]:
    return experiments(40, 720.0, extent.sensitivity, change)


def find(records: Records, extent: IbmSeeds) -> Reproduced:
    """Compare elastic batches with the baseline, row by row."""
    lines: list[ValueLine] = []
    rows: list[tuple[str, ...]] = []
    for change in CHANGES:
        found = means(records, _runs(change, extent))
        ours, other = found["elastic, drop"], found["baseline, drop"]
        waiting, others_waiting = found["elastic, queue"], found["baseline, queue"]
        is_ahead = (
            ours["sjs"] > other["sjs"]
            and ours["drop_ratio"] < other["drop_ratio"]
            and ours["jct_min"] < other["jct_min"]
            and waiting["sjs"] > others_waiting["sjs"]
            and waiting["jct_min"] < others_waiting["jct_min"]
        )
        fewer = other["drop_ratio"] - ours["drop_ratio"]
        lines.append(
            EXPECTED.line("sensitivity", "ahead", fewer, holds=is_ahead, change=change.name)
        )
        values = (found[name] for name in CELLS)
        cells = (f"{v['sjs']:.1f} / {v['drop_ratio']:.1f} / {v['jct_min']:.1f}" for v in values)
        rows.append((change.name, *cells))
    table = Table(headers=("SJS %, drop %, JCT min", *CELLS), rows=tuple(rows))
    return Reproduced(lines=tuple(lines), tables=(table,))
