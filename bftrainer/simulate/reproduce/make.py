"""From results to findings: plays what they need, once each, and lets them read the records.

``bftrainer reproduce`` and the tests call ``make``; pictures are written apart from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bftrainer.simulate.reproduce.draw import draw_all
from bftrainer.simulate.reproduce.extent import Extent
from bftrainer.simulate.reproduce.findings import Result
from bftrainer.simulate.reproduce.report import Reproduction
from bftrainer.simulate.reproduce.runs import play_all
from bftrainer.simulate.reproduce.scene import Scene


def make(
    scene: Scene,
    extent: Extent,
    results: Sequence[Result],
    *,
    processes: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Reproduction:
    """Play and find."""
    runs = {run for result in results for run in result.runs(extent)}
    records = play_all(scene, runs, processes=processes, on_progress=on_progress)
    return Reproduction(
        scene=scene,
        extent=extent,
        results=tuple(results),
        findings={
            result.result_id: result.find(records, extent)
            for result in results
            if result.find is not None
        },
        pictures={},
    )


def write_pictures(made: Reproduction, folder: Path) -> Reproduction:
    """Draw every chart into a folder.

    Raises:
        TraceError: matplotlib is not installed, or a file cannot be written.
    """
    charts = [chart for finding in made.findings.values() for chart in finding.charts]
    return replace(made, pictures=draw_all(charts, folder))
