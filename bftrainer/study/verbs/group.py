"""``bftrainer study VERB``: the table of verbs on studies; the lab adds those that draw."""

from __future__ import annotations

import click

from bftrainer.cli.main import LazyGroup
from bftrainer.cli.options import shown_example

# verb -> (module:command, text for --help)
_OF_STUDIES = {
    "run": ("bftrainer.study.verbs.run:run", "Begin a study, or go on with it."),
    "best": ("bftrainer.study.verbs.results:best", "Print the best trial and its checkpoint."),
    "pause": ("bftrainer.study.verbs.control:pause", "Take all nodes from a study's trials."),
    "resume": ("bftrainer.study.verbs.control:resume", "Let a paused study go on."),
    "stop": ("bftrainer.study.verbs.control:stop", "End all trials of a study; results stay."),
    "add": ("bftrainer.study.verbs.control:add", "Add trials to a study."),
    "export": ("bftrainer.study.verbs.results:export", "Print all trials as CSV or JSON."),
    "plan": ("bftrainer.study.verbs.plan:plan", "Plan a study for rented nodes."),
}


@click.command(
    cls=LazyGroup,
    path="study",
    groups={"Verbs": _OF_STUDIES},
    epilog=shown_example("bftrainer study run study.yaml train.py"),
)
def study() -> None:
    """Search hyper-parameters: every trial is a trainer on idle nodes."""
