"""``bftrainer reproduce``: repeat a paper's evaluation and compare with its values.

Replays a trace (the original data, a file, or the included sample) and writes a table, a JSON
document, a Markdown report and pictures. Needs no daemon.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftrainer.cli.common import print_table
from bftrainer.cli.trace import LateProgress
from bftrainer.columns import shown
from bftrainer.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from bftrainer.simulate.reproduce.report import Reproduction

DATA_VARIABLE = "BFTRAINER_DATA"
LINES_SHOWN = 8  # per result; Tables 3 and 4 have 50


@click.group(name="reproduce")
def reproduce() -> None:
    """Run a paper's evaluation again and compare."""


@reproduce.command(name="bftrainer")
@click.option("--only", multiple=True, metavar="ID", help="One result, such as fig7a; repeat.")
@click.option("--trace", "trace_file", type=click.Path(path_type=Path),
              help="Trace to replay  [default: the paper's week in $BFTRAINER_DATA, "
              "else the generated sample].")  # fmt: skip
@click.option("--quick", is_flag=True, help="Shorter spans and fewer points: under two minutes.")
@click.option("--json", "json_file", metavar="FILE", help="Write the document; - for stdout.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help="Write report.md and a picture per figure.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1, 256), default=os.cpu_count() or 1,
              show_default="number of cores", help="Replays at a time.")  # fmt: skip
@click.option("--list", "is_list", is_flag=True, help="Name the results and stop.")
def bftrainer(
    only: tuple[str, ...],
    trace_file: Path | None,
    json_file: str | None,
    out: Path | None,
    processes: int,
    *,
    quick: bool,
    is_list: bool,
) -> None:
    """Replay section 5 of the BFTrainer paper: Figs. 7 to 16, Tables 3 and 4."""
    from bftrainer.simulate.reproduce import report  # noqa: PLC0415 - numpy takes 0.1 s
    from bftrainer.simulate.reproduce.extent import FULL, QUICK  # noqa: PLC0415
    from bftrainer.simulate.reproduce.make import make, write_pictures  # noqa: PLC0415
    from bftrainer.simulate.reproduce.registry import choose  # noqa: PLC0415
    from bftrainer.simulate.reproduce.scene import choose_scene  # noqa: PLC0415

    results = choose(only)
    if is_list:
        print_table(("ID", "SHOWS"), [(r.result_id, r.shows) for r in results])
        return
    extent = QUICK if quick else FULL
    directory = os.environ.get(DATA_VARIABLE)
    scene = choose_scene(trace_file, Path(directory) if directory else None, hours=extent.hours)
    _check_writable(out, json_file)
    with LateProgress("replaying") as progress:
        made = make(scene, extent, results, processes=processes, on_progress=progress.report)
    if out is not None:
        made = write_pictures(made, out)
        _write(out / "report.md", report.markdown(made) + "\n")
    text = json.dumps(report.document(made), indent=2, allow_nan=False) + "\n"
    if json_file == "-":
        click.echo(text, nl=False)
        return
    if json_file is not None:
        _write(Path(json_file), text)
    _print(made)


def _print(made: Reproduction) -> None:
    from bftrainer.simulate.reproduce import report  # noqa: PLC0415 - as above

    for remark in report.remarks(made):
        click.echo(shown(remark))
    print_table(report.HEADERS, report.rows(made, most=LINES_SHOWN))


def _check_writable(out: Path | None, json_file: str | None) -> None:
    """Check that results can be written, before minutes of replays."""
    files = [] if json_file in {None, "-"} else [Path(str(json_file))]
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            files.append(out / "report.md")
        for path in files:
            path.open("a", encoding="utf-8").close()
    except OSError as problem:
        raise _unwritable(problem) from problem


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise _unwritable(problem) from problem


def _unwritable(problem: OSError) -> UsageError:
    return UsageError(
        "BFT-4161",
        f"{problem.filename} cannot be written: {problem.strerror or problem}.",
        "Choose another place for --out or --json.",
        exit_code=ExitCode.VALIDATION_FAILED,
    )
