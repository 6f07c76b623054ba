"""The way of trainers to the daemon: the trainers of an array, their directories, all or none.

A trainer whose checkpoint directory has to be prepared is submitted held: from then on no other
trainer may use the directory, and this one does not start before it is ready.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bftrainer.api.checkpoint_files import (
    bring,
    make_checkpoint_dir,
    newest_whole,
    remove_if_empty,
    set_aside,
    unstartable,
)
from bftrainer.api.client import Client
from bftrainer.cli.array_table import INDEX
from bftrainer.cli.option_values import ArrayOption
from bftrainer.cli.output import print_lines
from bftrainer.ground import files
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerChange, TrainerSpec
from bftrainer.model.views import TrainerView

TOO_MANY_NOW = "BFT-1031"  # the limit of submissions per minute
RETRY_S = 2.0
_ID = re.compile(r"t[0-9]{1,18}\Z", re.ASCII)
_PLACE = re.compile(r"\{(?P<kept>\{(?:index|name)\})\}|\{(?P<place>index|name)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """The preparation of a trainer's checkpoint directory before it may start."""

    source: Path | None = None  # directory whose newest checkpoint it starts from
    is_fresh: bool = False  # its own checkpoints are set aside

    @property
    def is_needed(self) -> bool:
        """Return whether anything is to be done."""
        return self.is_fresh or self.source is not None

    def check(self, spec: TrainerSpec) -> None:
        """Refuse what cannot be done (BFT-1047)."""
        if not self.is_needed:
            return
        directory = Path(spec.checkpoint_dir)
        if spec.runtime == "command":
            raise unstartable(
                "Programs of runtime command keep their state in files of their own.",
                "Copy them, or name a new --checkpoint-dir to start afresh.",
            )
        if self.source is None:
            return
        if os.path.realpath(self.source) == os.path.realpath(directory):
            raise unstartable(
                f"{shown(str(directory))} is the trainer's own checkpoint directory.",
                "Leave out --resume-from: it goes on from there anyway."
                " Name another -J or --checkpoint-dir to leave it as it is.",
            )
        if not self.is_fresh and files.newest_first(directory):
            raise unstartable(
                f"{shown(str(directory))} has checkpoints already.",
                "Add --fresh to set them aside, or name another -J or --checkpoint-dir.",
            )
        newest_whole(self.source)

    def prepare(self, directory: Path) -> None:
        """Set checkpoints aside and bring the one to start from."""
        try:
            if self.is_fresh:
                set_aside(directory)
            if self.source is not None:
                bring(self.source, directory)
        except OSError as problem:
            raise unstartable(
                f"The checkpoints in {shown(str(directory))} cannot be changed: {problem}.",
                "Check the directory and its file system, then submit again.",
            ) from problem


def source_of(client: Client, text: str | None) -> Path | None:
    """Return the checkpoint directory that ``--resume-from ID|DIR`` names."""
    if text is None:
        return None
    if _ID.match(text) and not os.path.lexists(text):
        return Path(client.trainer(text).record.spec.checkpoint_dir)
    return Path(text).absolute()


def send_all(
    client: Client, specs: Sequence[TrainerSpec], state: StartState
) -> tuple[TrainerView, ...]:
    """Submit all; when one is refused, those before it are cancelled again."""
    for spec in specs:
        state.check(spec)
    views: list[TrainerView] = []
    try:
        for spec in specs:
            if views:
                views.append(_patiently(client, spec, state))
            else:
                views.append(_send(client, spec, state))
    except BaseException:
        for view in views:
            with contextlib.suppress(BftError):
                client.cancel(view.record.trainer_id, now=True)
        raise
    return tuple(views)


def _patiently(client: Client, spec: TrainerSpec, state: StartState) -> TrainerView:
    """Submit a further trainer of an array, as fast as the policy allows."""
    is_told = False
    while True:
        try:
            return _send(client, spec, state)
        except BftError as error:
            if error.code != TOO_MANY_NOW:
                raise
            if not is_told:
                print_lines(f"waits: {error.cause}", err=True)
            is_told = True
            time.sleep(RETRY_S)


def _send(client: Client, spec: TrainerSpec, state: StartState) -> TrainerView:
    path = Path(spec.checkpoint_dir)
    is_new = make_checkpoint_dir(path)
    is_hold = spec.hold
    if state.is_needed:
        spec = replace(spec, hold=True)
    try:
        view = client.submit(spec)
    except BftError as error:
        # After a time-out the trainer may exist and use the directory.
        if is_new and error.exit_code != ExitCode.TIMEOUT:
            remove_if_empty(path)
        raise
    if not state.is_needed:
        return view
    trainer_id = view.record.trainer_id
    try:
        state.prepare(path)
        if not is_hold:
            view = client.change(trainer_id, TrainerChange(is_held=False))
    except BaseException:
        with contextlib.suppress(BftError):
            client.cancel(trainer_id, now=True)
        raise
    return view


def specs_of(
    spec: TrainerSpec, array: ArrayOption | None, *, has_own_dir: bool
) -> tuple[TrainerSpec, ...]:
    """Return the trainers to submit: one, or one for each index.

    Args:
        spec: as one trainer.
        array: None: it is one.
        has_own_dir: ``--checkpoint-dir`` was given: each has a directory in it. By default the
            directory is named after the trainer.
    """
    if array is None:
        return (spec,)
    array_id = secrets.token_hex(8)
    between = "_"
    if has_own_dir:
        between = "/"
    environment = [pair for pair in spec.environment if pair[0] != INDEX]
    specs = []
    for index in array.indices:
        name = f"{spec.name}_{index}"
        member = replace(
            spec,
            name=name,
            args=placed(spec.args, {"index": str(index), "name": name}),
            checkpoint_dir=f"{spec.checkpoint_dir}{between}{index}",
            environment=(*environment, (INDEX, str(index))),
            array_id=array_id,
            array_limit=array.limit,
        )
        specs.append(member)
    return tuple(specs)


def placed(args: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments of a trainer of an array: ``{index}`` and ``{name}`` have its values.

    ``{{index}}`` becomes ``{index}``; all other braces stay as they are.
    """

    def value(place: re.Match[str]) -> str:
        return place["kept"] or values[place["place"]]

    return tuple(map(partial(_PLACE.sub, value), args))
