"""Carries out a study's decisions: its trainers start, grow, are parked and end.

Every action may be repeated: what the daemon already has stays as it was. What cannot be done
because the trial has changed meanwhile is left to the next turn.

An argument ``--lr={lr}`` of the script gets the parameter's value.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bftrainer.api.checkpoint_files import (
    ChangingError,
    bring,
    copy_newest,
    drop_copies,
    make_checkpoint_dir,
)
from bftrainer.api.client import Client
from bftrainer.model.columns import counted
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.study import Report, TrialTag
from bftrainer.model.trainer import (
    TrainerChange,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from bftrainer.study.configurations import perturbed
from bftrainer.study.directory import Events, StudyDirectory, unwritable
from bftrainer.study.disk import drop_checkpoints
from bftrainer.study.storage import StudyStorage
from bftrainer.study.trial_table import KnownTrial, parameters_line
from bftrainer.study.trials import Scalar, Start, StoredTrial, TrialStage, Verdicts

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
AT_ONCE = 250  # trials of one request
_STARTS, _GROWTH = "to start", "to go on"
# Trainers in all, of a user at once, and per minute; bytes that a user has written in a day.
_LIMITS = ("BFT-1009", "BFT-1030", "BFT-1031", "BFT-1086")
# Codes of a daemon: ended; does not exist; trains; its budget is greater already.
_CHANGED_MEANWHILE = ("BFT-1043", "BFT-1004", "BFT-1602", "BFT-1601")


def filled(args: Sequence[str], parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the arguments with the parameters' values; what names none stays as it is."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return str(parameters[name]) if name in parameters else match[0]

    return tuple(map(partial(_PLACE.sub, value), args))


def check_places(args: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a place that is nearly a parameter's (BFT-1627)."""
    for argument in args:
        for name in _PLACE.findall(argument):
            similar = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
            if name not in names and similar:
                raise UsageError(
                    "BFT-1627",
                    f"The argument {{{name}}} names no parameter of the study.",
                    f"Did you mean {{{similar[0]}}}?",
                )


def spec_of(
    study: StudyDirectory,
    trial: StoredTrial,
    *,
    budget: int,
    most: int,
    attempt: int = 0,
    nodes: int | None = None,
) -> TrainerSpec:
    """Return the trainer of a trial.

    Args:
        study: whose trial it is.
        trial: with all its parameters.
        budget: units that it may train now.
        most: units that it may be granted.
        attempt: how often it was tried before.
        nodes: its size; None: as the study says.
    """
    base, document = study.base, study.document
    # In the document's order, whatever order the storage has.
    parameters = {name: trial.parameters[name] for name in document.parameters}
    n_min, n_max, sizes = base.n_min, base.n_max, base.sizes
    if nodes is not None:
        n_min, n_max, sizes = nodes, nodes, ()
    is_samples = document.unit == "samples"
    return replace(
        base,
        name=f"{document.name}-{trial.number}",
        args=filled(base.args, parameters),
        epochs=None if is_samples else budget,
        samples=budget if is_samples else None,
        n_min=n_min,
        n_max=n_max,
        sizes=sizes,
        checkpoint_dir=str(study.of_trial(trial.number)),
        trial=TrialTag(
            study=study.study_id,
            number=trial.number,
            attempt=attempt,
            most=most,
            parameters=json.dumps(parameters),
            maximizes=document.sign < 0,
        ),
    )


class Actor:
    """Creates, submits, changes and ends the trainers of one study."""

    def __init__(
        self, study: StudyDirectory, client: Client, storage: StudyStorage, events: Events
    ) -> None:
        self._study, self._client, self._storage = study, client, storage
        self._events = events
        self._limited: set[str] = set()  # what the policy's limits refused last: _STARTS, _GROWTH

    def create(self, starts: Sequence[Start], trials: Sequence[KnownTrial]) -> bool:
        """Create trials in the storage; ``submit`` hands them to the daemon in the next turn.

        Returns:
            Whether any was; a parent at the end of its budget has no state to give until it waits.
        """
        without_parent = sum(trial.stored.parent is None for trial in trials)
        has_any = False
        by_number = {trial.number: trial for trial in trials}
        for start in starts:
            parent = None if start.parent is None else by_number[start.parent]
            if parent is not None and parent.is_ending:
                continue
            number = self._storage.next_number()
            parameters = self._parameters(parent, number, without_parent)
            try:
                self._prepare(number, parent, start.budget)
            except ChangingError:
                continue
            has_any = True
            created = self._storage.create(start, parameters)
            if created != number:  # another script was faster
                self._rename(number, created)
            without_parent += start.parent is None
        return has_any

    def _parameters(
        self, parent: KnownTrial | None, number: int, place: int
    ) -> Mapping[str, Scalar]:
        """Return the parameters of a new trial; ``place`` is its place among those without parent.

        Raises:
            UsageError: BFT-1634, there are no more configurations.
        """
        document = self._study.document
        if parent is not None:
            return perturbed(
                parent.stored.parameters, document.parameters, seed=document.seed, number=number
            )
        if not isinstance(document.configurations, tuple):
            return self._storage.draw(number)
        if place >= len(document.configurations):
            raise UsageError(
                "BFT-1634",
                f"The rule wants another trial, and all {place} configurations are used.",
                "Begin another study with more configurations.",
            )
        return document.configurations[place]

    def submit(
        self, trials: Sequence[KnownTrial], most: int, size_of: Callable[[KnownTrial], int | None]
    ) -> bool:
        """Hand trials to the daemon that it does not have, or that are to be tried again.

        Returns:
            Whether it took all; the policy's limits may keep it from that for now.
        """
        waiting, at_once, limit = list(trials), AT_ONCE, ""
        while waiting and at_once:
            group = waiting[:at_once]
            specs = [self._spec(trial, most, size_of(trial)) for trial in group]
            try:
                self._client.submit_trials(specs)
            except BftError as error:
                if error.code not in _LIMITS:
                    raise
                # A request is taken whole or not at all: half as many may have room.
                at_once = len(group) // 2
                limit = limit or error.cause
                continue
            for trial in group:
                self._tell_submitted(trial)
            del waiting[: len(group)]
        self._tell_limited(_STARTS, len(waiting), limit)
        return not waiting

    @property
    def is_limited(self) -> bool:
        """Return whether the policy's limits refused something, which is to be tried again."""
        return bool(self._limited)

    def _tell_limited(self, purpose: str, count: int, limit: str) -> None:
        """Say that so many trials wait; once, until none does."""
        if not count:
            self._limited.discard(purpose)
        elif purpose not in self._limited:
            self._limited.add(purpose)
            wait = "waits" if count == 1 else "wait"
            line = f"{counted(count, 'trial')} {wait} {purpose}: {limit}"
            self._events.happened("limited", line)

    def _spec(self, trial: KnownTrial, most: int, nodes: int | None) -> TrainerSpec:
        attempt = trial.attempt
        if trial.is_to_retry:
            attempt += 1
        return spec_of(
            self._study, trial.stored, budget=trial.budget, most=most, attempt=attempt, nodes=nodes
        )

    def _prepare(self, number: int, parent: KnownTrial | None, budget: int) -> None:
        """Make the trial's directory, with its parent's state if it has a parent.

        Before the trial exists: what its parent is now is gone when the parent has grown.

        Raises:
            ChangingError: the parent has no state to give now; nothing is left of the try.
        """
        directory = self._empty_directory(number)
        make_checkpoint_dir(directory)
        if parent is None:
            return
        source = self._study.of_trial(parent.number)
        try:
            if self._study.base.runtime == "command":
                copy_newest(source, directory)
            else:
                bring(source, directory)
        except OSError as problem:
            raise unwritable(directory, problem) from problem
        if self._has_trained(parent, budget):
            self._empty_directory(number)
            raise ChangingError(str(directory))

    def _has_trained(self, parent: KnownTrial, budget: int) -> bool:
        """Return whether a copy just taken may be of a budget's end: an heir would have no work.

        Asked after the copy, as a parent may have trained on since the turn's look. One that waited
        at its rung then is as it was: only this loop lets it go on, and its heir's budget is the
        next one. The heir of one that trained has its parent's budget.
        """
        if parent.stage is not TrialStage.ACTIVE or parent.view is None:
            return False
        return _has_reached(self._client.trainer(parent.view.trainer_id).record, budget)

    def _rename(self, number: int, created: int) -> None:
        """Give what was prepared to the trial that it became; the number is not of ours."""
        directory = self._empty_directory(created)
        try:
            self._study.of_trial(number).rename(directory)
        except OSError as problem:
            raise unwritable(directory, problem) from problem

    def _empty_directory(self, number: int) -> Path:
        """Return a new trial's directory, without what a loop left that was killed here."""
        directory = self._study.of_trial(number)
        drop_checkpoints(directory)
        drop_copies(directory)
        return directory

    def _tell_submitted(self, trial: KnownTrial) -> None:
        unit, number = self._study.document.unit, trial.number
        if trial.is_to_retry:
            why = trial.view.reason if trial.view else ""
            line = f"trial {number} is tried again, as it failed: {why}"
            self._events.happened("retried", line, trial=number, reason=why)
            return
        line = f"trial {number} starts"
        if trial.stored.parent is not None:
            line += f" from trial {trial.stored.parent}"
        line += f", {trial.budget} {unit}: {parameters_line(trial.stored.parameters)}"
        self._events.happened("started", line, trial=number, budget=trial.budget)

    def grow(self, trials: Sequence[KnownTrial], verdicts: Verdicts) -> None:
        """Grant waiting trials more units, as far as the policy's limits go.

        Trials at their rungs do not count as the user's, those that train do.
        """
        for place, trial in enumerate(trials):
            budget, nodes = verdicts.grow[trial.number], verdicts.nodes.get(trial.number)
            change = TrainerChange(budget=budget)
            if nodes is not None:
                change = replace(change, n_min=nodes, n_max=nodes, sizes=())
            stood = {**trial.stored.stood, trial.budget: trial.units}
            if (trial.stored.granted, trial.stored.stood) != (budget, stood):  # not noted already
                self._storage.climb(trial.number, budget, stood)
            try:
                is_granted = self._act_on(trial, partial(self._client.change, change=change))
            except BftError as error:
                if error.code not in _LIMITS:
                    raise
                self._tell_limited(_GROWTH, len(trials) - place, error.cause)
                return
            if is_granted:
                line = f"trial {trial.number} goes on to {budget} {self._study.document.unit}"
                self._events.happened("grown", line, trial=trial.number, budget=budget)
        self._tell_limited(_GROWTH, 0, "")

    def cancel(self, trial: KnownTrial) -> None:
        """End a trial's trainer; its last steps are not needed."""
        self._act_on(trial, lambda trainer_id: self._client.cancel(trainer_id, now=True))

    def hold(self, trials: Iterable[KnownTrial], *, is_held: bool) -> None:
        """Keep living trials from having nodes, or let them go on."""
        change = TrainerChange(is_held=is_held)
        for trial in trials:
            if trial.is_alive and trial.view is not None and trial.view.is_held != is_held:
                self._act_on(trial, lambda trainer_id: self._client.change(trainer_id, change))

    def _act_on(self, trial: KnownTrial, act: Callable[[str], object]) -> bool:
        """Do something with its trainer, unless it has changed since it was looked at."""
        if trial.view is None:
            return False
        try:
            act(trial.view.trainer_id)
        except BftError as error:
            if error.code not in _CHANGED_MEANWHILE:
                raise
            return False
        return True


def _has_reached(record: TrainerRecord, budget: int) -> bool:
    """Return whether a trainer has trained a budget; not every program counts what it trains."""
    if record.rung_s is not None or record.state is TrainerState.FINISHED:
        return True
    # Progress is sent only now and then, but a report before its checkpoint is written.
    marks: tuple[TrainerProgress | Report, ...] = (record.progress, *record.reports)
    if record.spec.epochs is None:
        return any(mark.samples >= budget for mark in marks)
    return any(mark.epoch >= budget for mark in marks)
