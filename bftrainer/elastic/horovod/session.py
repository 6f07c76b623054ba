"""The life cycle of a Horovod worker: warm up, form, train, re-form, leave.

Handles the script's calls of ``hvd.init`` and of its elastic function and the control plane's
commits; forms Horovod contexts and reports to the daemon. A change is announced to the state
by ``on_hosts_updated``, at once and without a driver; the members agree on it in the script's
``commit()`` or ``check_host_updates()``, as usual in Horovod. Called by ``bootstrap``; see
``docs/howto/train-horovod.md``.
"""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Callable
from typing import Any, NoReturn

from bftrainer.elastic.collective import Broken
from bftrainer.elastic.control import Control, die, key_of
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.generations import WorkerGenerations
from bftrainer.elastic.horovod.checkpoints import Saver
from bftrainer.elastic.horovod.counts import Counts
from bftrainer.elastic.horovod.world import HorovodContext
from bftrainer.elastic.protocol import Commit, Failed, Finished, Warm

ADDED = 2  # HostUpdateResult.added in horovod/runner/elastic/worker.py
WARM_VARIABLE = "BFT_HOROVOD_WARM"  # "0": a joiner waits in hvd.init(), as under horovodrun
ATTEMPTS = 1 << 20  # more than a generation ever has
NO_SCRIPT = ElasticError(
    "BFT-1431",
    "The script ended without having called an elastic function.",
    "Train in a function under @hvd.elastic.run, and call it once.",
)


class Session(WorkerGenerations):
    """One worker. ``others``: the number of members that trained when it was ordered."""

    def __init__(self, control: Control, *, others: int) -> None:
        super().__init__(control)
        self.world = HorovodContext(control)
        self.lost_errors: tuple[type[Exception], ...] = ()
        self.change_errors: tuple[type[Exception], ...] = ()
        self._others = others
        self._counts = Counts()
        self._saver = Saver(control, self._counts, self.reports)
        self._init: Callable[[], object] = lambda: None
        self._shutdown: Callable[[], object] = lambda: None
        self._state: Any = None
        self._save: Callable[[], object] = lambda: None  # the state's own ``save``
        self._formed: Commit | None = None  # of the context, entered or not
        self._has_state = self._is_guessing = False
        control.on_commit = self._on_commit
        control.on_script_end = self._script_ended
        control.report = self._report

    # ---- what the script calls -----------------------------------------------------------

    def init(self, init: Callable[[], object], shutdown: Callable[[], object]) -> None:
        """Replace the script's ``hvd.init()``.

        While others train, a joiner builds its model in a context of its own, and no member
        waits for it. At a start all workers wait here, so that ``hvd.size()`` is right when
        the script builds its objects.
        """
        if self.world.is_up:
            return
        self._init, self._shutdown = init, shutdown
        if self._others and os.environ.get(WARM_VARIABLE, "1") != "0":
            self.world.form_alone(init, shutdown)
            self._guess(self._others)
        else:
            self._say_warm()
            self._form()

    def run_fn(self, func: Callable[..., Any], reset: Callable[[], object]) -> Callable[..., Any]:
        """Replace ``horovod.common.elastic.run_fn``; ``reset`` is not used."""
        del reset

        @functools.wraps(func)
        def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
            if self.control.is_over:
                raise NO_SCRIPT
            self._begin(state)
            needs_sync = True
            while True:
                try:
                    self._enter(state, needs_sync=needs_sync)
                    result = func(state, *args, **kwargs)
                except self.lost_errors as problem:
                    lost = str(problem).partition("\n")[0][:300] or type(problem).__name__
                except self.change_errors:
                    lost = ""
                else:
                    self._finish(state)
                    return result
                needs_sync = self._change(state, lost)

        return wrapper

    def _report(self, value: Any) -> None:
        """Report a metric of the training as it is now (``elastic.report``)."""
        if self.commit is not None:
            counts = self._counts
            self.report(value, step=counts.step, epoch=self._epoch(), samples=counts.samples)

    # ---- one generation after the other ----------------------------------------------------

    def _guess(self, others: int) -> None:
        sets: Any = importlib.import_module("horovod.common.process_sets")
        self._is_guessing = True
        self.world.guess(others, others + 1)
        # Optimizers of workers outside the process set do nothing.
        sets.global_process_set.ranks = list(range(others + 1))

    def _say_warm(self) -> None:
        self.control.send(Warm(warm_up_s=time.monotonic() - self.control.started_s))

    def _begin(self, state: Any) -> None:
        """Register the script's state; a joiner joins the others here."""
        self._state = state
        if self._is_guessing:
            self.world.guess_no_more()
            state.sync()  # warms up what a first exchange needs
            self.world.shut_down()
        self._counts.watch(state)
        self._counts.on_step = self._tell
        self._save = save = state.save

        def saved() -> None:
            save()
            self._counts.commit()
            self._has_state = True
            if self.world.rank == 0 and self._saver.is_due():
                self._saver.save_aside(state, self.fence())

        state.save = saved
        if self._is_guessing:
            self._say_warm()
            self._form()
            state.on_reset()  # it was built for a guessed rank and size
        self._notice(state)

    def _change(self, state: Any, lost: str) -> bool:
        """Go to the next generation; return whether the state has to be exchanged."""
        before = self._formed
        if lost:
            self.world.cut()  # first: others may be waiting for us in an exchange
            state.restore()
            self._counts.restore()
            self.interrupted(lost, self._counts.step)
        elif self._counts.is_ahead:
            # The script checked for changes without committing: an exchange would combine the
            # present model with the committed counters.
            self._save()
            self._counts.keep()
            self._has_state = True
        self.world.shut_down()
        self._form()
        state.on_reset()
        self._notice(state)
        if lost or before is None or self._formed is None:
            return True
        ids = {m.worker_id for m in before.members}
        needs_sync = any(m.worker_id not in ids for m in self._formed.members)
        if not needs_sync:
            # Horovod omits this: its samplers would keep the shares of the old size.
            for handler in getattr(state, "_handlers", {}).values():
                if hasattr(handler.value, "record_batch"):
                    handler.value.reset()
        return needs_sync

    def _form(self) -> None:
        """Wait for a generation and form it, or the one that supersedes it."""
        while True:
            commit = self.wait()
            me = self.control.config.worker_id
            if not any(m.worker_id == me for m in commit.members):
                self._leave(commit)
            self._formed = commit
            broken = self.world.form(commit, self._init, self._shutdown)
            if not isinstance(broken, Broken):
                return
            self.interrupted(broken.reason, self._counts.step)

    def _enter(self, state: Any, *, needs_sync: bool) -> None:
        """Bring all members to one state and report ``Entered``."""
        commit, started_s = self._formed, time.monotonic()
        if commit is None:
            raise NO_SCRIPT
        resumed = ""
        step, samples = self._counts.step, self._counts.samples
        if needs_sync:
            if self.world.rank == 0 and not self._has_state:
                resumed, step, samples = self._saver.load(state)
            state.sync()
            mine = (step, samples, resumed, self.reports.state_dict())
            told = state._bcast_object(mine)  # noqa: SLF001 - no public way
            step, samples, resumed, reports = told
            self.reports.load_state_dict(reports)
            if resumed:
                state.on_reset()  # values that depend on the size came from the checkpoint
                self._notice(state)
        self.stepped_s = self._counts.stepped_s
        self._counts.enter(step, samples, self.world.size)
        self.entered(
            commit,
            rank=self.world.rank,
            size=self.world.size,
            step=step,
            epoch=self._epoch(),
            samples=samples,
            transfer_s=time.monotonic() - started_s,
            resumed_from=resumed,
        )

    # ---- messages from and to the daemon -----------------------------------------------------

    def _on_commit(self, commit: Commit) -> None:
        """In the control thread: announce the change to the state."""
        if self.control.is_over:
            return
        if self._state is not None:
            self._announce(self._state, commit)
        if commit.abandon:
            self.world.cut(before=key_of(commit))

    def _notice(self, state: Any) -> None:
        """Repeat announcements that came while a generation formed: a reset drops them."""
        if newer := self.newer():
            self._announce(state, newer)

    def _announce(self, state: Any, commit: Commit) -> None:
        state.on_hosts_updated(commit.generation * ATTEMPTS + commit.attempt, ADDED)

    def _tell(self) -> None:
        pace, commit = self._counts.pace, self.commit
        if commit is not None and pace.is_due():
            info = self._counts.info(commit, self.world.rank, self._epoch())
            self.control.send(pace.progress(info))

    def _epoch(self) -> int:
        epoch = getattr(self._state, "epoch", 0)
        return epoch if isinstance(epoch, int) else 0

    # ---- ends ----------------------------------------------------------------------------------

    def _leave(self, commit: Commit) -> NoReturn:
        if self.is_saver(commit) and self._has_state:
            self._saver.save_now(self._state, self.fence())
        self.leave(commit, self._counts.step)

    def _finish(self, state: Any) -> None:
        """Complete the run: the elastic function has returned."""
        self.control.is_over = True
        if self.world.rank == 0:
            self._save()
            self._counts.keep()
            self._saver.save_now(state, self.fence())
        commit = self.commit
        self.control.send(
            Finished(
                generation=0 if commit is None else commit.generation,
                step=self._counts.step,
                epoch=self._epoch(),
                samples=self._counts.samples,
            )
        )

    def _script_ended(self) -> None:
        self.control.send(
            Failed(code=NO_SCRIPT.code, cause=NO_SCRIPT.cause, next_step=NO_SCRIPT.next_step)
        )
        die(NO_SCRIPT.cause, status=1)
