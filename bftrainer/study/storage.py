"""The study in Optuna's storage: parameters, values and ends of trials; new trials are drawn.

A journal file in the study's directory, so that optuna-dashboard and scripts read it. Only the
process that holds the study's lock writes. Optuna has no state for a pause: a trial that waits is
RUNNING there. Imported by the loop and by verbs that need it, never by the daemon.

``Study.ask`` on the study's own storage would create the trial first and then store one parameter
after the other: a killed process leaves half a trial. So samplers draw from a study in memory. What
a trial gets depends on the seed, its number and, with tpe, on what others had reported by then;
not on how often the study's process was started.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import QMCSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from bftrainer.ground.fields import shortened
from bftrainer.ground.regular_file import open_stream
from bftrainer.model.errors import BftError, ExitCode, exit_code_of
from bftrainer.study.configurations import FloatParameter, IntParameter, Parameter
from bftrainer.study.directory import unwritable
from bftrainer.study.document import StudyDocument
from bftrainer.study.trials import Scalar, Start, StoredTrial, TrialStage

_Seen = list[tuple[TrialState, tuple[float, ...]]]

LOCK_PATIENCE_S = 3
_ENDS = {
    TrialState.COMPLETE: TrialStage.COMPLETE,
    TrialState.PRUNED: TrialStage.STOPPED,
    TrialState.FAIL: TrialStage.FAILED,
}
_STATES = {end: state for state, end in _ENDS.items()}


class Drawer:
    """Draws for one study."""

    def __init__(
        self,
        sampler: str,
        seed: int,
        space: Mapping[str, BaseDistribution],
        direction: StudyDirection,
    ) -> None:
        """Draw from a space by ``tpe``, ``random`` or ``qmc``."""
        self._name, self._seed, self._space = sampler, seed, dict(space)
        self._direction = direction
        self._memory = optuna.create_study(direction=direction)
        self._seen: _Seen = []  # states and reports of the trials in memory
        self._points: list[dict[str, Scalar]] = []  # of qmc, by number

    def draw(self, number: int, past: Sequence[FrozenTrial]) -> dict[str, Scalar]:
        """Return parameters for the trial of a number.

        Args:
            number: of the new trial.
            past: all trials of the study that there are; what scripts have added is not.

        Raises:
            BftError: BFT-1625, a package that the sampler needs is missing.
        """
        if self._name == "qmc":
            return self._point(number)
        digest = hashlib.sha256(f"{self._seed}:{number}".encode()).digest()
        trial_seed = int.from_bytes(digest[:4]) >> 1
        if self._name == "tpe":
            self._remember(past)
            self._memory.sampler = TPESampler(seed=trial_seed)
            self._seen.append((TrialState.RUNNING, ()))
            return self._memory.ask(self._space).params
        sampler, trial = RandomSampler(seed=trial_seed), create_trial(state=TrialState.RUNNING)
        parameters: dict[str, Scalar] = {}
        for name, distribution in self._space.items():
            parameters[name] = sampler.sample_independent(self._memory, trial, name, distribution)
        return parameters

    def _remember(self, past: Sequence[FrozenTrial]) -> None:
        """Put all trials into memory, unless they are there."""
        states = [(trial.state, tuple(trial.intermediate_values.values())) for trial in past]
        if states == self._seen:
            return
        self._memory, self._seen = optuna.create_study(direction=self._direction), states
        self._memory.add_trials(list(map(_as_tpe_sees, past)))

    def _point(self, number: int) -> dict[str, Scalar]:
        """Return the point of the sequence with a number."""
        if importlib.util.find_spec("scipy") is None:  # Optuna would say so in the first trial only
            raise BftError(
                "BFT-1625",
                "The sampler qmc needs scipy.",
                "Run: pip install scipy",
                exit_code=ExitCode.USAGE,
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = QMCSampler(scramble=True, seed=self._seed)
        trial = create_trial(state=TrialState.RUNNING)
        while len(self._points) <= number:  # the study in memory counts them
            self._points.append(sampler.sample_relative(self._memory, trial, self._space))
        return dict(self._points[number])


def _as_tpe_sees(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial as tpe is to see it: one that has reported counts by its newest value.

    Trials that wait at a rung are RUNNING in the storage, and tpe takes those for bad ones.
    """
    if trial.state is not TrialState.RUNNING or not trial.intermediate_values:
        return trial
    return create_trial(
        state=TrialState.PRUNED,
        params=trial.params,
        distributions=trial.distributions,
        intermediate_values=trial.intermediate_values,
    )


def distributions_of(parameters: Mapping[str, Parameter]) -> dict[str, BaseDistribution]:
    """Return Optuna's distribution of each parameter."""
    return {name: _distribution(parameter) for name, parameter in parameters.items()}


def _distribution(parameter: Parameter) -> BaseDistribution:
    if isinstance(parameter, FloatParameter):
        return FloatDistribution(
            parameter.low, parameter.high, log=parameter.log, step=parameter.step
        )
    if isinstance(parameter, IntParameter):
        return IntDistribution(
            parameter.low, parameter.high, log=parameter.log, step=parameter.step
        )
    return CategoricalDistribution(parameter.choices)


class StudyStorage:
    """One study's trials."""

    def __init__(self, path: Path, name: str, document: StudyDocument) -> None:
        """Open the storage; it is created if it is missing.

        Raises:
            BftError: BFT-1636, it cannot be read.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._path = path
        self._distributions = distributions_of(document.parameters)
        self._direction = StudyDirection[document.direction.upper()]
        self._drawer = Drawer(document.sampler, document.seed, self._distributions, self._direction)
        self._known: dict[int, StoredTrial] = {}  # that have ended
        with self._file():
            open_stream(path, "ab").close()  # Optuna opens whatever is there
            self._storage = JournalStorage(JournalFileBackend(str(path)))
            self._study_id = self._opened(name)

    def _opened(self, name: str) -> int:
        """Return the id of the study, which is created if it is missing."""
        with contextlib.suppress(KeyError):
            return self._storage.get_study_id_from_name(name)
        return self._storage.create_new_study([self._direction], name)

    # ---- reading ---------------------------------------------------------------------

    def trials(self) -> tuple[StoredTrial, ...]:
        """Return all trials of ours in the order of their numbers.

        Scripts of the user may add others, which have no budget.
        """
        frozen_trials = self._ours()
        stored_trials: list[StoredTrial] = []
        with self._file():
            for frozen in frozen_trials:
                stored = self._known.get(frozen.number) or self._read(frozen)
                stored_trials.append(stored)
            return tuple(stored_trials)

    def _ours(self) -> list[FrozenTrial]:
        with self._file():
            trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
            return [trial for trial in trials if _is_ours(trial)]

    def _read(self, trial: FrozenTrial) -> StoredTrial:
        attributes = trial.user_attrs
        climbed = attributes.get("climbed", {})

        stored = StoredTrial(
            number=trial.number,
            end=_ENDS.get(trial.state),
            parameters=dict(trial.params),
            budget=attributes.get("budget", 0),
            bracket=attributes.get("bracket", 0),
            parent=attributes.get("parent"),
            nodes=attributes.get("nodes"),
            granted=climbed.get("to", 0),
            stood=_with_int_keys(climbed.get("stood", {})),
            values=dict(trial.intermediate_values),
            orders=_with_int_keys(attributes.get("orders", {})),
            reason=attributes.get("reason", ""),
            node_s=attributes.get("node_s", 0.0),
            began_s=_timestamp(trial.datetime_start),
            ended_s=_timestamp(trial.datetime_complete),
        )
        _check(stored)
        if stored.end is not None:
            self._known[trial.number] = stored
        return stored

    def next_number(self) -> int:
        """Return the number of the next trial, unless somebody else creates one before."""
        with self._file():
            return self._storage.get_n_trials(self._study_id)

    @contextlib.contextmanager
    def _file(self) -> Iterator[None]:
        """Say what is wrong with the file (BFT-1636); scripts may have removed the study from it.

        What they have ended is left as it is: the next turn reads it.
        """
        try:
            yield
        except optuna.exceptions.UpdateFinishedTrialError:
            return
        except BftError:
            raise
        except OSError as problem:
            raise unwritable(self._path, problem) from problem
        except Exception as problem:  # Optuna trusts its file: any type may come of damage
            raise _unreadable(self._path, problem) from problem

    def note(self, name: str) -> Any:
        """Return what was noted of the study; None: nothing."""
        with self._file():
            return self._storage.get_study_user_attrs(self._study_id).get(name)

    # ---- writing ---------------------------------------------------------------------

    def set_note(self, name: str, value: Any) -> None:
        """Note something of the study."""
        if self.note(name) != value:
            with self._file():
                self._storage.set_study_user_attr(self._study_id, name, value)

    def draw(self, number: int) -> dict[str, Scalar]:
        """Return parameters for a trial that is about to be created."""
        past = self._ours()
        with self._file():
            return self._drawer.draw(number, past)

    def create(self, start: Start, parameters: Mapping[str, Scalar]) -> int:
        """Create a trial, with all that belongs to it in one line of the journal; its number."""
        attributes = {"budget": start.budget, "bracket": start.bracket, "parent": start.parent}
        if start.nodes is not None:
            attributes["nodes"] = start.nodes
        template = create_trial(
            state=TrialState.RUNNING,
            params=dict(parameters),
            distributions=self._distributions,
            user_attrs=attributes,
        )
        with self._file():
            trial_id = self._storage.create_new_trial(self._study_id, template_trial=template)
            return self._storage.get_trial_number_from_id(trial_id)

    def report(self, number: int, values: Mapping[int, float]) -> None:
        """Write values that it lacks, by units."""
        for units, value in values.items():
            with self._file():
                self._storage.set_trial_intermediate_value(self._id(number), units, value)

    def climb(self, number: int, to: int, stood: Mapping[int, int]) -> None:
        """Note that a trial goes on to a budget, and where its values stood at the rungs it left.

        Written before the daemon grants it, which may forget the trial one day.
        """
        climbed = {"to": to, "stood": _with_text_keys(stood)}
        with self._file():
            self._storage.set_trial_user_attr(self._id(number), "climbed", climbed)

    def finish(
        self,
        number: int,
        end: TrialStage,
        *,
        value: float | None,
        reason: str,
        orders: Mapping[int, float],
        node_s: float,
    ) -> None:
        """End a trial; what is said of it is written before."""
        attributes = {
            "orders": _with_text_keys(orders),
            "node_s": round(node_s, 3),
            "reason": reason,
        }
        values = None if value is None or end is TrialStage.FAILED else [value]
        with self._file():
            trial_id = self._id(number)
            # Attributes first: Optuna changes nothing of a trial that has ended.
            for name, attribute in attributes.items():
                if attribute:
                    self._storage.set_trial_user_attr(trial_id, name, attribute)
            self._storage.set_trial_state_values(trial_id, _STATES[end], values)

    def _id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)


def _is_ours(trial: FrozenTrial) -> bool:
    return trial.state is not TrialState.WAITING and "budget" in trial.user_attrs


def _timestamp(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


def _with_text_keys(numbers: Mapping[int, float]) -> dict[str, float]:
    """Return a mapping as JSON has it."""
    return {str(key): number for key, number in numbers.items()}


def _with_int_keys(numbers: Mapping[str, Any]) -> dict[int, Any]:
    """Return a mapping as it was before ``_with_text_keys``; its numbers are unchecked."""
    return {int(key): number for key, number in numbers.items()}


def _check(trial: StoredTrial) -> None:
    """Refuse a trial with numbers that are none, which others can have written."""
    numbers = (trial.budget, trial.bracket, trial.granted, trial.node_s, *trial.values.values())
    for number in (*numbers, *trial.orders.values(), trial.parent or 0, trial.nodes or 0):
        if type(number) not in (int, float) or not math.isfinite(number):
            raise ValueError(f"trial {trial.number} has the number {number!r}")
    for value in trial.parameters.values():
        if not isinstance(value, str) and not math.isfinite(value):
            raise ValueError(f"trial {trial.number} has the parameter {value!r}")


def _unreadable(path: Path, problem: Exception) -> BftError:
    exit_code = ExitCode.VALIDATION_FAILED
    if isinstance(problem, OSError):
        exit_code = exit_code_of(problem)
    why = str(problem) or type(problem).__name__
    return BftError(
        "BFT-1636",
        f"The study's storage {path} cannot be read: {shortened(why, 200)}.",
        "Restore it from a backup, or begin another study.",
        exit_code=exit_code,
    )


def repair(path: Path) -> None:
    """Mend what a crash has left in a storage: a stale lock, and a last line that is cut.

    Called with the study's lock held. Scripts of the user may write at that moment: Optuna's own
    lock is taken, which is stale if the file has not grown for ``LOCK_PATIENCE_S`` (by default
    Optuna waits for 30 s). Nothing could be added after a cut line.
    """
    if not os.path.lexists(path):
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a stale lock is nothing to warn of
    lock = JournalFileSymlinkLock(str(path), grace_period=LOCK_PATIENCE_S)
    try:
        lock.acquire()
        try:
            _drop_cut_line(path)
        finally:
            lock.release()
    except OSError as problem:
        raise unwritable(path, problem) from problem


def _drop_cut_line(path: Path) -> None:
    with open_stream(path, "rb+") as file:
        data = file.read()
        end = data.rfind(b"\n") + 1
        if end != len(data):
            file.truncate(end)
