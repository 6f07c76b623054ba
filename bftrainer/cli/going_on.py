"""What ``bftrainer submit`` says of the checkpoint from which a trainer will go on.

``elastic.checkpoints.origin`` compares. A checkpoint of other arguments is refused here, before
anything is sent, and once more by the worker: a checkpoint may come into the directory in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from bftrainer.api.checkpoint_files import unstartable
from bftrainer.cli.options import GroupedCommand, option
from bftrainer.cli.spec import COMMAND
from bftrainer.elastic.checkpoints.origin import (
    ARRAY_INDEX,
    EXPORTED,
    Difference,
    RunOrigin,
    compare,
)
from bftrainer.elastic.checkpoints.origin_check import (
    ARGUMENTS,
    CONTINUE,
    SCHEDULE_NEW,
    WAYS,
    in_a_sentence,
    newest_header,
    origin_of,
    refusal,
)
from bftrainer.ground import files
from bftrainer.model.columns import shown
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec

_BARE = "--continue"
_IN_FULL = {_BARE: f"{_BARE}={ARGUMENTS}"}  # word without a value -> with the usual one
CONTINUE_OPTION = option(
    f"{_BARE} [=schedule-old|=schedule-new]",
    "Go on from a checkpoint of other arguments with the new ones; which schedule counts if they"
    " differ.",
    click.Choice(WAYS),
    name="way",
)


class ContinuingCommand(GroupedCommand):
    """A command whose ``--continue`` may stand without a value before a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give the option its value, but not among the script's arguments."""
        words = [_IN_FULL.get(word, word) for word in args]
        values, _, _ = self.make_parser(ctx).parse_args(list(words))
        script_args = values.get("args")  # the last words
        n_own = len(args)
        if isinstance(script_args, tuple):
            n_own -= len(script_args)
        return super().parse_args(ctx, [*words[:n_own], *args[n_own:]])


def marked(
    spec: TrainerSpec, exported: Sequence[tuple[str, str]], way: str | None, *, has_source: bool
) -> TrainerSpec:
    """Return the spec with what its workers need to compare and to go on.

    Args:
        spec: of one trainer, an index included.
        exported: the values of ``--export``.
        way: ``--continue``; None: it was not given.
        has_source: it starts from the checkpoint of another trainer: its arguments count.
    """
    if spec.runtime == COMMAND:
        if way is not None:
            raise unstartable(
                "Programs of runtime command keep their state in files of their own.",
                "Leave out --continue: the program gets its arguments and goes on as it does.",
            )
        return spec
    marks: dict[str, str] = {}
    if way is not None:
        marks[CONTINUE] = way
    elif has_source:
        marks[CONTINUE] = SCHEDULE_NEW
    present = dict(spec.environment)
    if present:
        names = dict.fromkeys((*dict(exported), ARRAY_INDEX))  # ALL and NONE are not present
        marks[EXPORTED] = " ".join(name for name in names if name in present)
    unmarked = [(name, value) for name, value in spec.environment if name not in marks]
    return replace(spec, environment=(*unmarked, *marks.items()))


def said_of_start(spec: TrainerSpec, source: Path | None, *, is_fresh: bool) -> str:
    """Return from where a trainer will go on and what differs there; "": it begins anew.

    Args:
        spec: of one trainer.
        source: directory of another trainer that it starts from.
        is_fresh: its own checkpoints are set aside.

    Raises:
        UsageError: BFT-1450, its checkpoint is of other arguments.
    """
    if spec.runtime == COMMAND or (is_fresh and source is None):
        return ""
    newest = newest_header(source or Path(spec.checkpoint_dir))
    if newest is None:
        return ""
    path, header = newest
    origin, step = RunOrigin.read(header), files.step_of(path)
    difference = Difference()
    if origin is not None:
        difference = compare(origin, origin_of(spec))
        if difference.refusals and CONTINUE not in dict(spec.environment):
            error = refusal(spec.checkpoint_dir, step, origin, difference)
            raise UsageError(error.code, error.cause, error.next_step)
    return f"{shown(spec.name)} {shown(in_a_sentence(step, origin, difference))}"
