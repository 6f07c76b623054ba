"""``bftrainer reproduce PAPER``: repeat a paper's evaluation and compare with its values.

There is one command per package of ``bftrainer.lab.papers``; each is imported when it is used. A
command replays a trace (the original data, a file, or the included sample) and writes a table, a
JSON document, a Markdown report and pictures. Needs no daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftrainer.cli.options import PATH, PROCESSES, VerbGroup, option, shown_example, verb
from bftrainer.cli.output import print_lines, print_table
from bftrainer.lab.papers.paper import about, load, names
from bftrainer.lab.verbs.trace import LateProgress
from bftrainer.model.errors import UsageError, exit_code_of

if TYPE_CHECKING:
    from bftrainer.lab.papers.findings import Chart
    from bftrainer.lab.papers.paper import Reproduction

DATA_VARIABLE = "BFTRAINER_DATA"
LINES_SHOWN = 8  # per result; Tables 3 and 4 have 50


class _Papers(VerbGroup):
    """One command per paper."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in names():
            return None
        return _command(cmd_name)


@click.group(
    name="reproduce",
    cls=_Papers,
    epilog=shown_example("bftrainer reproduce dl2 --quick --out report"),
)
def reproduce() -> None:
    """Run a paper's evaluation again and compare."""


def _command(name: str) -> click.Command:
    """Return the command of a paper."""

    @verb(
        option("--only ID", "One result, such as fig7a; repeat.", multiple=True),
        option("--trace", "Trace to replay  [default: the paper's in $BFTRAINER_DATA, "
               "else a generated sample].", PATH, name="trace_file"),
        option("--quick", "Shorter spans and fewer points."),
        option("--json FILE", "Write the document; - for stdout.", name="json_file"),
        option("--out DIR", "Write report.html, report.md and a picture per figure.", PATH),
        PROCESSES,
        option("--list", "Name the results and stop.", name="is_list"),
        name=name, help=about(name).partition("\n\n")[0],
        example=f"bftrainer reproduce {name} --quick --out report",
    )  # fmt: skip
    def command(
        only: tuple[str, ...],
        trace_file: Path | None,
        json_file: str | None,
        out: Path | None,
        processes: int,
        *,
        quick: bool,
        is_list: bool,
    ) -> None:
        from bftrainer.lab.papers.paper import reproduce  # noqa: PLC0415 - with numpy, 0.1 s

        paper = load(name)
        results = paper.choose(only)
        if is_list:
            rows = [(result.result_id, result.shows) for result in results]
            print_table(("ID", "SHOWS"), rows)
            return
        if trace_file is not None and not paper.reads_trace:
            raise UsageError(
                "BFT-4162", f"reproduce {name} does not replay a trace.", "Leave out --trace."
            )
        extent = paper.quick if quick else paper.full
        directory = os.environ.get(DATA_VARIABLE)
        data = Path(directory) if directory else None
        scenario = paper.choose_scenario(trace_file, data, extent)
        _check_writable(out, json_file)
        with LateProgress("replaying") as progress:
            reproduction = reproduce(
                paper, scenario, extent, results, processes=processes, on_progress=progress.report
            )
        _show(reproduction, out, json_file)

    return command


def _show(reproduction: Reproduction, out: Path | None, json_file: str | None) -> None:
    """Write report and document, and print the table unless the document goes to stdout."""
    from bftrainer.lab import html  # noqa: PLC0415 - as above
    from bftrainer.lab.papers import report  # noqa: PLC0415

    if out is not None:
        charts: list[Chart] = []
        for finding in reproduction.findings.values():
            charts += finding.charts
        text = report.markdown(reproduction, report.draw_all(charts, out)) + "\n"
        with _writing():
            (out / "report.md").write_text(text, encoding="utf-8")
        page = report.page_of(reproduction, shlex.join(["bftrainer", *sys.argv[1:]]))
        html.write_page(out / "report.html", page)
    text = json.dumps(report.document(reproduction), indent=2, allow_nan=False) + "\n"
    if json_file == "-":
        click.echo(text, nl=False)  # JSON escapes
        return
    if json_file is not None:
        with _writing():
            Path(json_file).write_text(text, encoding="utf-8")
    print_lines(report.answer(reproduction))
    for remark in report.remarks(reproduction):
        print_lines(remark)
    print_table(report.HEADERS, report.rows(reproduction, most=LINES_SHOWN))


def _check_writable(out: Path | None, json_file: str | None) -> None:
    """Check that results can be written, before minutes of replays."""
    files: list[Path] = []
    if json_file not in {None, "-"}:
        files.append(Path(str(json_file)))
    with _writing():
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            files.append(out / "report.md")
        for path in files:
            path.open("a", encoding="utf-8").close()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Say which file cannot be written (BFT-4161)."""
    try:
        yield
    except OSError as problem:
        raise UsageError(
            "BFT-4161",
            f"{problem.filename} cannot be written: {problem.strerror or problem}.",
            "Choose another place for --out or --json.",
            exit_code=exit_code_of(problem),
        ) from problem
