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

from bftrainer.elastic.abandonable import Broken
from bftrainer.elastic.control import Control, Key, die, key_of, step_aside
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.fence import Fence
from bftrainer.elastic.horovod.counts import Counts
from bftrainer.elastic.horovod.saving import Saver
from bftrainer.elastic.horovod.world import HorovodContext
from bftrainer.elastic.protocol import (
    Commit,
    Entered,
    Failed,
    Finished,
    Interrupted,
    Left,
    Warm,
)

ADDED = 2  # HostUpdateResult.added in horovod/runner/elastic/worker.py
WARM_VARIABLE = "BFT_HOROVOD_WARM"  # "0": a joiner waits in hvd.init(), as under horovodrun
ATTEMPTS = 1 << 20  # more than a generation ever has
NO_SCRIPT = ElasticError(
    "BFT-1431",
    "The script ended without having called an elastic function.",
    "Train in a function under @hvd.elastic.run, and call it once.",
)


class Session:
    """One worker. ``others``: the number of members that trained when it was ordered."""

    def __init__(self, control: Control, *, others: int) -> None:
        self.world = HorovodContext(control)
        self.lost_errors: tuple[type[Exception], ...] = ()
        self.change_errors: tuple[type[Exception], ...] = ()
        self._control = control
        self._others = others
        self._counts = Counts()
        self._saver = Saver(control, self._counts)
        self._init: Callable[[], object] = lambda: None
        self._shutdown: Callable[[], object] = lambda: None
        self._state: Any = None
        self._save: Callable[[], object] = lambda: None  # the state's own ``save``
        self._commit: Commit | None = None  # of the generation entered or being entered
        self._seen: Key = (-1, -1)
        self._has_state = self._is_guessing = False
        control.on_commit = self._on_commit
        control.on_script_end = self._script_ended

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
            if self._control.is_over:
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

    # ---- one generation after the other ----------------------------------------------------

    def _guess(self, others: int) -> None:
        sets: Any = importlib.import_module("horovod.common.process_sets")
        self._is_guessing = True
        self.world.guess(others, others + 1)
        # Optimizers of workers outside the process set do nothing.
        sets.global_process_set.ranks = list(range(others + 1))

    def _say_warm(self) -> None:
        self._control.send(Warm(warm_up_s=time.monotonic() - self._control.started_s))

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
                self._saver.save_aside(state, self._fence())

        state.save = saved
        if self._is_guessing:
            self._say_warm()
            self._form()
            state.on_reset()  # it was built for a guessed rank and size
        self._notice(state)

    def _change(self, state: Any, lost: str) -> bool:
        """Go to the next generation; return whether the state has to be exchanged."""
        before = self._commit
        if lost:
            self.world.cut()  # first: others may be waiting for us in an exchange
            state.restore()
            self._counts.restore()
            self._interrupted(lost)
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
        if lost or before is None or self._commit is None:
            return True
        ids = {m.worker_id for m in before.members}
        needs_sync = any(m.worker_id not in ids for m in self._commit.members)
        if not needs_sync:
            # Horovod omits this: its samplers would keep the shares of the old size.
            for handler in getattr(state, "_handlers", {}).values():
                if hasattr(handler.value, "record_batch"):
                    handler.value.reset()
        return needs_sync

    def _form(self) -> None:
        """Wait for a generation and form it, or the one that supersedes it."""
        while True:
            commit = self._control.wait_newer(self._seen)
            self._seen = key_of(commit)
            me = self._control.config.worker_id
            if not any(m.worker_id == me for m in commit.members):
                self._leave(commit)
            self._commit = commit
            broken = self.world.form(commit, self._init, self._shutdown)
            if not isinstance(broken, Broken):
                return
            self._interrupted(broken.reason)

    def _enter(self, state: Any, *, needs_sync: bool) -> None:
        """Bring all members to one state and report ``Entered``."""
        commit, started_s = self._commit, time.monotonic()
        if commit is None:
            raise NO_SCRIPT
        resumed = ""
        step, samples = self._counts.step, self._counts.samples
        if needs_sync:
            if self.world.rank == 0 and not self._has_state:
                resumed, step, samples = self._saver.load(state)
            state.sync()
            told = state._bcast_object((step, samples, resumed))  # noqa: SLF001 - no public way
            step, samples, resumed = told
            if resumed:
                state.on_reset()  # values that depend on the size came from the checkpoint
                self._notice(state)
        stepped_s = self._counts.stepped_s
        self._counts.enter(step, samples, self.world.size)
        self._control.close_stores(before=key_of(commit))
        now_s = time.monotonic()
        self._control.send(
            Entered(
                generation=commit.generation,
                attempt=commit.attempt,
                rank=self.world.rank,
                size=self.world.size,
                step=step,
                epoch=self._epoch(),
                samples=samples,
                pause_s=0.0 if stepped_s is None else now_s - stepped_s,
                transfer_s=now_s - started_s,
                resumed_from=resumed,
            )
        )

    # ---- messages from and to the daemon -----------------------------------------------------

    def _on_commit(self, commit: Commit) -> None:
        """In the control thread: announce the change to the state."""
        if self._control.is_over:
            return
        if self._state is not None:
            self._announce(self._state, commit)
        if commit.abandon:
            self.world.cut(before=key_of(commit))

    def _notice(self, state: Any) -> None:
        """Repeat announcements that came while a generation formed: a reset drops them."""
        if newer := self._control.newer_than(self._seen):
            self._announce(state, newer)

    def _announce(self, state: Any, commit: Commit) -> None:
        state.on_hosts_updated(commit.generation * ATTEMPTS + commit.attempt, ADDED)

    def _tell(self) -> None:
        pace, commit = self._counts.pace, self._commit
        if commit is not None and pace.is_due():
            info = self._counts.info(commit, self.world.rank, self._epoch())
            self._control.send(pace.progress(info))

    def _interrupted(self, reason: str) -> None:
        commit = self._commit
        if commit is not None:
            self._control.send(
                Interrupted(
                    generation=commit.generation,
                    attempt=commit.attempt,
                    step=self._counts.step,
                    reason=reason,
                )
            )

    def _epoch(self) -> int:
        epoch = getattr(self._state, "epoch", 0)
        return epoch if isinstance(epoch, int) else 0

    def _fence(self) -> Fence:
        commit = self._commit
        return Fence(
            incarnation=0 if commit is None else commit.incarnation,
            generation=0 if commit is None else commit.generation,
            token="" if commit is None else commit.token,
            trainer_id=self._control.config.trainer_id,
        )

    # ---- ends ----------------------------------------------------------------------------------

    def _leave(self, commit: Commit) -> NoReturn:
        me = self._control.config.worker_id
        is_saver = me == commit.saver or (not commit.saver and self.world.rank == 0)
        if not commit.members and is_saver and self._has_state:
            self._saver.save_now(self._state, self._fence())
        self._control.send(Left(generation=commit.generation, step=self._counts.step))
        step_aside()
        die(f"left before generation {commit.generation}", status=0)

    def _finish(self, state: Any) -> None:
        """Complete the run: the elastic function has returned."""
        self._control.is_over = True
        if self.world.rank == 0:
            self._save()
            self._counts.keep()
            self._saver.save_now(state, self._fence())
        commit = self._commit
        self._control.send(
            Finished(
                generation=0 if commit is None else commit.generation,
                step=self._counts.step,
                epoch=self._epoch(),
                samples=self._counts.samples,
            )
        )

    def _script_ended(self) -> None:
        self._control.send(
            Failed(code=NO_SCRIPT.code, cause=NO_SCRIPT.cause, next_step=NO_SCRIPT.next_step)
        )
        die(NO_SCRIPT.cause, status=1)
