"""``bftrainer study VERB``: the table of verbs on studies; one file per verb."""

from __future__ import annotations

import click

from bftrainer.cli.main import LazyGroup
from bftrainer.cli.options import shown_example

# verb -> (module:command, text for --help)
VERBS = {
    "run": ("bftrainer.cli.study.run:run", "Begin a study, or go on with it."),
    "status": ("bftrainer.cli.study.results:status", "Show the best trial, rungs and trials."),
    "best": ("bftrainer.cli.study.results:best", "Print the best trial and its checkpoint."),
    "pause": ("bftrainer.cli.study.control:pause", "Take all nodes from a study's trials."),
    "resume": ("bftrainer.cli.study.control:resume", "Let a paused study go on."),
    "stop": ("bftrainer.cli.study.control:stop", "End all trials of a study; results stay."),
    "add": ("bftrainer.cli.study.control:add", "Add trials to a study."),
    "export": ("bftrainer.cli.study.results:export", "Print all trials as CSV or JSON."),
    "plan": ("bftrainer.cli.study.plan:plan", "Plan a study for rented nodes."),
    "deadline": ("bftrainer.cli.study.deadline:deadline", "Say whether idle nodes will do."),
    "plot": ("bftrainer.cli.study.results:plot", "Draw values, parameters and rungs over time."),
}


@click.command(
    cls=LazyGroup,
    groups={"Verbs": VERBS},
    epilog=shown_example("bftrainer study run study.yaml train.py"),
)
def study() -> None:
    """Search hyper-parameters: every trial is a trainer on idle nodes."""
