"""The picture of the comparison: time over problem size, one line per solver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from _bench.timing import Row

MARKS = "osD^v*"
DRAWN = ("exact, sizes", "exact, whole decision", "dense, whole decision")


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Draw medians with a bar to the maximum; what did not end with the optimum is an open mark.

    The file's ending chooses the format, as matplotlib knows it.
    """
    # Imported here: only who asks for the picture needs the package.
    from matplotlib.figure import Figure  # noqa: PLC0415

    rows = [
        row
        for row in rows
        if row.family == "mixed" and (row.what in DRAWN or row.what.endswith("node-level"))
    ]
    sizes = sorted({(row.trainers, row.nodes) for row in rows}, key=lambda s: s[0] * s[1])
    position = {size: i for i, size in enumerate(sizes)}
    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, solver in enumerate(dict.fromkeys(row.what for row in rows)):
        points = [row for row in rows if row.what == solver]
        points.sort(key=lambda row: position[row.trainers, row.nodes])
        xs = [position[row.trainers, row.nodes] for row in points]
        ys = [row.median_s for row in points]
        mark = MARKS[i % len(MARKS)]
        (line,) = axes.plot(xs, ys, label=solver, linewidth=1.2)
        axes.vlines(xs, ys, [row.max_s for row in points], color=line.get_color(), linewidth=1.0)
        for x, y, row in zip(xs, ys, points, strict=True):
            face = "white" if row.at_limit else line.get_color()
            axes.plot([x], [y], mark, color=line.get_color(), markerfacecolor=face)
    axes.set_yscale("log")
    axes.set_xticks(range(len(sizes)), [f"{j:,} x {n:,}" for j, n in sizes])
    axes.set_xlabel("trainers x nodes")
    axes.set_ylabel("seconds to the answer (median, line to maximum)")
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.legend(title="open mark: no optimum (limit or refusal)", fontsize=8, title_fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
