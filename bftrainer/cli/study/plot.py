"""``bftrainer study plot STUDY``: pictures of a study."""

from __future__ import annotations

from pathlib import Path

import click

from bftrainer.api.documents import schema
from bftrainer.cli.common import json_option, print_json, socket_option
from bftrainer.cli.study.lookup import find_study, study_argument, summary_of
from bftrainer.model.errors import UsageError

ENDINGS = (".png", ".svg", ".pdf")
KINDS = ("history", "parallel", "importance", "rungs")


@click.command()
@study_argument
@click.option("--kind", type=click.Choice(KINDS), help="One picture.  [default: all on one page]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="A .png, .svg or .pdf.  [default: NAME.png, NAME-KIND.png]")  # fmt: skip
@json_option
@socket_option
def plot(
    study_name: str, kind: str | None, out: Path | None, socket_name: str | None, *, as_json: bool
) -> None:
    """Draw STUDY: values over time, parameters, their importance, rungs over time."""
    from bftrainer.study.events import read_events  # noqa: PLC0415 - for this verb alone
    from bftrainer.study.plots.material import material  # noqa: PLC0415
    from bftrainer.study.plots.picture import draw  # noqa: PLC0415

    if out is not None and out.suffix.lower() not in ENDINGS:
        raise UsageError(
            "BFT-1662",
            f"The picture {out} cannot be written: its name says no format that is known here.",
            f"Let it end in one of {', '.join(ENDINGS)}.",
        )
    study = find_study(study_name, socket_name)
    summary = summary_of(study.path, socket_name)
    file = out or Path(f"{summary.name}{f'-{kind}' if kind else ''}.png")
    draw(material(summary, study.document.parameters, read_events(study.events)), kind, file)
    if as_json:
        kinds = [kind] if kind else list(KINDS)
        print_json({"schema": schema("plot"), "file": str(file.absolute()), "kinds": kinds})
    else:
        click.echo(f"wrote {file}")
