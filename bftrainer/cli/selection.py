"""The choice of trainers by user, name and state, as ``scancel`` takes it.

Ids and choices together mean the trainers that are in both. Before more than one is changed by
choice, the user is asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from bftrainer.api.client import Client
from bftrainer.api.service import user_name
from bftrainer.cli.options import option
from bftrainer.cli.output import print_lines
from bftrainer.model.columns import counted, shown
from bftrainer.model.trainer import TrainerState
from bftrainer.model.views import TrainerView

# Word for a state, ours or of squeue -> states as ``status`` shows them.
_WAITING: Final = ("queued", "parked", "held", "at rung")
_STATES: Final = {
    "queued": ("queued",),
    "parked": ("parked",),
    "held": ("held",),
    "running": ("running", "unheard"),
    "r": ("running", "unheard"),
    "pending": _WAITING,
    "pd": _WAITING,
    "suspended": ("held",),
    "s": ("held",),
}
MOST_LISTED: Final = 20  # trainers that a question names


def _states(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> frozenset[str]:
    states = set[str]()
    for word in _words(text):
        if word.lower() not in _STATES:
            choices = ", ".join(state.value for state in TrainerState if not state.is_final)
            raise click.BadParameter(
                f"{word[:40]!r} is no state of a trainer that goes on; write {choices} or held."
            )
        states.update(_STATES[word.lower()])
    return frozenset(states)


def _names(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> frozenset[str]:
    return frozenset(_words(text))


def _words(text: str | None) -> list[str]:
    return list(filter(None, map(str.strip, (text or "").split(","))))


SELECTION: Final = (
    option("-u, --user USER", "All of this user's; with the other choices yours, unless said."),
    option("--me", "All of yours.", name="is_own"),
    option("-n, --name NAME[,NAME]", "Those of these names.", name="names", callback=_names),
    option(
        "-t, --state STATE[,STATE]",
        "Those in these states: queued, running, parked, held (PD, R, S).",
        name="states",
        callback=_states,
    ),
    option("-y, --yes", "Do not ask before several are changed.", name="is_sure"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The trainers that a command line means."""

    ids: tuple[str, ...]  # as typed; (): all
    user: str | None
    names: frozenset[str]  # empty: all
    states: frozenset[str]  # as ``status`` shows them; empty: all
    is_sure: bool  # nobody is asked

    @property
    def is_by_choice(self) -> bool:
        """Return whether trainers are chosen, and not only named by ids."""
        return bool(self.user or self.names or self.states)

    def has(self, view: TrainerView, user: str) -> bool:
        """Return whether a trainer is meant; ``user`` counts if no other is chosen."""
        spec = view.record.spec
        return (
            not view.record.state.is_final
            and (not self.ids or view.record.trainer_id in self.ids)
            and spec.user == (self.user or user)
            and (not self.names or spec.name in self.names)
            and (not self.states or view.state in self.states)
        )


def selection_of(values: Mapping[str, Any]) -> Selection:
    """Return what the parameters of a verb with ``SELECTION`` and ids mean.

    Raises:
        click.MissingParameter: they name no trainer.
    """
    user = values["user"]
    if values["is_own"]:
        user = user_name(os.geteuid())
    selection = Selection(
        ids=values["trainer_ids"],
        user=user,
        names=values["names"],
        states=values["states"],
        is_sure=values["is_sure"],
    )
    if not selection.ids and not selection.is_by_choice:
        context = click.get_current_context()
        parameter = next(p for p in context.command.params if isinstance(p, click.Argument))
        raise click.MissingParameter(ctx=context, param=parameter)
    return selection


def chosen_ids(selection: Selection, client: Client) -> tuple[str, ...]:
    """Return the ids of the trainers that are meant; (): none is, or the user thinks better of it.

    Args:
        selection: from ``selection_of``.
        client: asked for the trainers unless ids alone name them.

    Raises:
        click.UsageError: several are meant, and nobody can be asked.
        BftError: of the client.
    """
    if not selection.is_by_choice:
        return selection.ids
    own_name = user_name(os.geteuid())
    views = [view for view in client.trainers() if selection.has(view, own_name)]
    ids = tuple(view.record.trainer_id for view in views)
    if not ids:
        print_lines("No trainer that goes on is meant.", err=True)
    if len(ids) < 2 or selection.is_sure:
        return ids
    verb = click.get_current_context().info_name or "change"
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{counted(len(ids), 'trainer')} are meant, and nobody can be asked: add --yes."
        )
    print_lines(*_listed(views), err=True)
    question = f"{verb.capitalize()} {counted(len(ids), 'trainer')}?"
    if click.confirm(question, default=False, err=True):
        return ids
    return ()


def _listed(views: Sequence[TrainerView]) -> list[str]:
    lines: list[str] = []
    for view in views[:MOST_LISTED]:
        spec = view.record.spec
        lines.append(shown(f"{view.record.trainer_id} {spec.name} of {spec.user}, {view.state}"))
    if len(views) > MOST_LISTED:
        lines.append(f"and {len(views) - MOST_LISTED} more")
    return lines
