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
from bftrainer.study.checkpoint_files import (
    ChangingError,
    bring,
    copy_newest,
    drop_copies,
    make_checkpoint_dir,
)
from bftrainer.study.configurations import perturbed
from bftrainer.study.directory import Events, StudyDirectory, unwritable
from bftrainer.study.disk import drop_checkpoints
from bftrainer.study.storage import StudyStorage
from bftrainer.study.trial_table import KnownTrial, parameters_line
from bftrainer.study.trials import Scalar, Start, StoredTrial, TrialStage, Verdicts

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


def filled(args: Sequence[str], parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the arguments with the parameters' values; what names none stays as it is."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        return str(parameters[name]) if name in parameters else found[0]

    return tuple(_PLACE.sub(value, one) for one in args)


def check_places(args: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a place that is nearly a parameter's (BFT-1627)."""
    for name in (found[1] for one in args for found in _PLACE.finditer(one)):
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        if name not in names and near:
            raise UsageError(
                "BFT-1627",
                f"The argument {{{name}}} names no parameter of the study.",
                f"Did you mean {{{near[0]}}}?",
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
    is_samples = document.unit == "samples"
    return replace(
        base,
        name=f"{document.name}-{trial.number}",
        args=filled(base.args, parameters),
        epochs=None if is_samples else budget,
        samples=budget if is_samples else None,
        n_min=base.n_min if nodes is None else nodes,
        n_max=base.n_max if nodes is None else nodes,
        sizes=base.sizes if nodes is None else (),
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


AT_ONCE = 250  # trials of one request
_STARTS, _GROWTH = "to start", "to go on"
# Trainers in all, of a user at once, and per minute; bytes that a user has written in a day.
_LIMITS = ("BFT-1009", "BFT-1030", "BFT-1031", "BFT-1086")
# Codes of a daemon: ended; does not exist; trains; its budget is greater already.
_CHANGED_MEANWHILE = ("BFT-1043", "BFT-1004", "BFT-1602", "BFT-1601")


class Actor:
    """Creates, submits, changes and ends the trainers of one study."""

    def __init__(
        self, study: StudyDirectory, client: Client, storage: StudyStorage, events: Events
    ) -> None:
        self._study, self._client, self._storage = study, client, storage
        self._events = events
        self._limited: set[str] = set()  # what the policy's limits refused last: _STARTS, _GROWTH

    def create(self, starts: Sequence[Start], known: Sequence[KnownTrial]) -> bool:
        """Create trials in the storage; ``submit`` hands them to the daemon in the next turn.

        Returns:
            Whether any was; a parent at the end of its budget has no state to give until it waits.
        """
        fresh, has_any = sum(one.stored.parent is None for one in known), False
        by_number = {one.number: one for one in known}
        for start in starts:
            parent = None if start.parent is None else by_number[start.parent]
            if parent is not None and parent.is_ending:
                continue
            number = self._storage.next_number()
            parameters = self._parameters(parent, number, fresh)
            try:
                self._prepare(number, parent, start.budget)
            except ChangingError:
                continue
            has_any = True
            made = self._storage.create(start, parameters)
            if made != number:  # another script was faster
                self._rename(number, made)
            fresh += start.parent is None
        return has_any

    def _parameters(
        self, parent: KnownTrial | None, number: int, fresh: int
    ) -> Mapping[str, Scalar]:
        """Return the parameters of a new trial."""
        document = self._study.document
        if parent is not None:
            return perturbed(
                parent.stored.parameters, document.parameters, seed=document.seed, number=number
            )
        if not isinstance(document.configurations, tuple):
            return self._storage.draw(number)
        if fresh >= len(document.configurations):
            raise UsageError(
                "BFT-1634",
                f"The rule wants another trial, and all {fresh} configurations are used.",
                "Begin another study with more configurations.",
            )
        return document.configurations[fresh]

    def submit(
        self, trials: Sequence[KnownTrial], most: int, size_of: Callable[[KnownTrial], int | None]
    ) -> bool:
        """Hand trials to the daemon that it does not have, or that are to be tried again.

        Returns:
            Whether it took all; the policy's limits may keep it from that for now.
        """
        left, at_once, limit = list(trials), AT_ONCE, ""
        while left and at_once:
            group = left[:at_once]
            try:
                self._client.submit_trials([self._spec(one, most, size_of(one)) for one in group])
            except BftError as error:
                if error.code not in _LIMITS:
                    raise
                at_once = len(group) // 2
                limit = limit or error.cause
                continue
            for one in group:
                self._tell_submitted(one)
            del left[: len(group)]
        self._tell_limited(_STARTS, len(left), limit)
        return not left

    @property
    def is_limited(self) -> bool:
        """Return whether the policy's limits refused something, which is to be tried again."""
        return bool(self._limited)

    def _tell_limited(self, what: str, count: int, limit: str) -> None:
        """Say that so many trials wait; once, until none does."""
        if not count:
            self._limited.discard(what)
        elif what not in self._limited:
            self._limited.add(what)
            self._events.happened(
                "limited",
                f"{counted(count, 'trial')} {'waits' if count == 1 else 'wait'} {what}: {limit}",
            )

    def _spec(self, one: KnownTrial, most: int, nodes: int | None) -> TrainerSpec:
        attempt = one.attempt + 1 if one.is_to_retry else one.attempt
        return spec_of(
            self._study, one.stored, budget=one.budget, most=most, attempt=attempt, nodes=nodes
        )

    def _prepare(self, number: int, parent: KnownTrial | None, budget: int) -> None:
        """Make the trial's directory, with its parent's state if it has a parent.

        Before the trial exists: what its parent is now is gone when the parent has grown.

        Raises:
            ChangingError: the parent has no state to give now; nothing is left of the try.
        """
        directory = self._cleared(number)
        make_checkpoint_dir(directory)
        if parent is None:
            return
        take = copy_newest if self._study.base.runtime == "command" else bring
        try:
            take(self._study.of_trial(parent.number), directory)
        except OSError as problem:
            raise unwritable(directory, problem) from problem
        if self._has_trained(parent, budget):
            self._cleared(number)
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

    def _rename(self, number: int, made: int) -> None:
        """Give what was prepared to the trial that it became; the number is not of ours."""
        directory = self._cleared(made)
        try:
            self._study.of_trial(number).rename(directory)
        except OSError as problem:
            raise unwritable(directory, problem) from problem

    def _cleared(self, number: int) -> Path:
        """Return a new trial's directory, without what a loop left that was killed here."""
        directory = self._study.of_trial(number)
        drop_checkpoints(directory)
        drop_copies(directory)
        return directory

    def _tell_submitted(self, one: KnownTrial) -> None:
        unit, number = self._study.document.unit, one.number
        if one.is_to_retry:
            why = one.view.reason if one.view else ""
            line = f"trial {number} is tried again, as it failed: {why}"
            self._events.happened("retried", line, trial=number, reason=why)
            return
        said = parameters_line(one.stored.parameters)
        parent = "" if one.stored.parent is None else f" from trial {one.stored.parent}"
        line = f"trial {number} starts{parent}, {one.budget} {unit}: {said}"
        self._events.happened("started", line, trial=number, budget=one.budget)

    def grow(self, trials: Sequence[KnownTrial], verdicts: Verdicts) -> None:
        """Grant waiting trials more units, as far as the policy's limits go.

        Trials at their rungs do not count as the user's, those that train do.
        """
        for done, one in enumerate(trials):
            budget, nodes = verdicts.grow[one.number], verdicts.nodes.get(one.number)
            sizes = None if nodes is None else ()
            change = TrainerChange(budget=budget, n_min=nodes, n_max=nodes, sizes=sizes)
            stood = {**one.stored.stood, one.budget: one.units}
            if (one.stored.granted, one.stored.stood) != (budget, stood):  # not noted already
                self._storage.climb(one.number, budget, stood)
            try:
                is_granted = self._tried(one, partial(self._client.change, change=change))
            except BftError as error:
                if error.code not in _LIMITS:
                    raise
                self._tell_limited(_GROWTH, len(trials) - done, error.cause)
                return
            if is_granted:
                line = f"trial {one.number} goes on to {budget} {self._study.document.unit}"
                self._events.happened("grown", line, trial=one.number, budget=budget)
        self._tell_limited(_GROWTH, 0, "")

    def cancel(self, one: KnownTrial) -> None:
        """End a trial's trainer; its last steps are not needed."""
        self._tried(one, lambda trainer_id: self._client.cancel(trainer_id, now=True))

    def hold(self, known: Iterable[KnownTrial], *, is_held: bool) -> None:
        """Keep living trials from having nodes, or let them go on."""
        change = TrainerChange(is_held=is_held)
        for one in known:
            if one.is_alive and one.view is not None and one.view.is_held != is_held:
                self._tried(one, lambda trainer_id: self._client.change(trainer_id, change))

    def _tried(self, one: KnownTrial, act: Callable[[str], object]) -> bool:
        """Do something with its trainer, unless it has changed since it was looked at."""
        if one.view is None:
            return False
        try:
            act(one.view.trainer_id)
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
    is_of_samples = record.spec.epochs is None
    return any((one.samples if is_of_samples else one.epoch) >= budget for one in marks)
