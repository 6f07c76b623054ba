"""Sends the trainers of one ``submit`` to the daemon: all of them, or none.

A trainer whose checkpoint directory has to be prepared is submitted held: from then on no other
trainer may use the directory, and this one does not start before it is ready.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from bftrainer.api.client import Client
from bftrainer.cli.start_state import StartState
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerChange, TrainerSpec
from bftrainer.model.views import TrainerView
from bftrainer.study.checkpoint_files import make_checkpoint_dir, remove_if_empty

TOO_MANY_NOW = "BFT-1031"  # the limit of submissions per minute
RETRY_S = 2.0


def send_all(
    client: Client, specs: Sequence[TrainerSpec], state: StartState
) -> tuple[TrainerView, ...]:
    """Submit all; when one is refused, those before it are cancelled again."""
    for spec in specs:
        state.check(spec)
    sent: list[TrainerView] = []
    try:
        for spec in specs:
            sent.append(_patiently(client, spec, state) if sent else _send(client, spec, state))
    except BaseException:
        for view in sent:
            with contextlib.suppress(BftError):
                client.cancel(view.record.trainer_id, now=True)
        raise
    return tuple(sent)


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
                click.echo(f"waits: {error.cause}", err=True)
            is_told = True
            time.sleep(RETRY_S)


def _send(client: Client, spec: TrainerSpec, state: StartState) -> TrainerView:
    path = Path(spec.checkpoint_dir)
    is_new = make_checkpoint_dir(path)
    try:
        view = client.submit(replace(spec, hold=True) if state.is_needed else spec)
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
        return view if spec.hold else client.change(trainer_id, TrainerChange(is_held=False))
    except BaseException:
        with contextlib.suppress(BftError):
            client.cancel(trainer_id, now=True)
        raise
