"""The life cycle of a Horovod worker: warm up, form, train, re-form, leave.

Handles the script's calls of ``hvd.init`` and of its elastic function and the control plane's
commits; forms Horovod contexts and reports to the daemon. A change is announced to the state
by ``on_hosts_updated``, at once and without a driver; the members agree on it in the script's
``commit()`` or ``check_host_updates()``, as usual in Horovod. See
``docs/howto/train-horovod.md``.

``main`` replaces ``horovodrun``, then runs the user's script. The command line holds the number of
members that trained when this worker was ordered, the script and its arguments. Horovod's ``init``
and the wrapper behind ``hvd.elastic.run`` are replaced before the script can import them;
everything else is Horovod's own.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.elastic.checkpoints.disk import CheckpointDisk
from bftrainer.elastic.checkpoints.origin_check import OriginCheck
from bftrainer.elastic.checkpoints.passed_over import TellingSearch
from bftrainer.elastic.horovod.horovod_compat import (
    SAVED,
    handlers_of,
    objects_of,
    set_objects,
    share,
)
from bftrainer.elastic.horovod.own_rates import OwnRates
from bftrainer.elastic.horovod.world import HorovodContext
from bftrainer.elastic.loop.run_info import StepDurations
from bftrainer.elastic.network.collective import Broken
from bftrainer.elastic.process import control as control_module
from bftrainer.elastic.process.control import Control, die, key_of
from bftrainer.elastic.process.generations import WorkerGenerations
from bftrainer.elastic.process.reports import NO_REPORTS, Reports
from bftrainer.elastic.state.continuing import remark_of
from bftrainer.elastic.state.state import part_streams
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.fence import Fence
from bftrainer.ground.main_module import first_path, run_main
from bftrainer.ground.protocol import Commit, Failed

ADDED = 2  # HostUpdateResult.added in horovod/runner/elastic/worker.py
WARM_VARIABLE = "BFT_HOROVOD_WARM"  # "0": a joiner waits in hvd.init(), as under horovodrun
ATTEMPTS = 1 << 20  # more than a generation ever has
LAYOUT = 0x48564453  # instead of a model's: a Horovod state is checked when it is restored
NO_SCRIPT = ElasticError(
    "BFT-1431",
    "The script ended without having called an elastic function.",
    "Train in a function under @hvd.elastic.run, and call it once.",
)


class Counts:
    """Steps and samples so far of a script that does not report them, and those at the last commit.

    A step is one of the first optimizer in the script's ``TorchState`` (without one: a
    ``commit()``). Its samples are those that went into the state's models in training mode since
    the previous step, times the number of workers.
    """

    def __init__(self) -> None:
        self.step = self.samples = 0
        self.pace = StepDurations()
        self.stepped_s: float | None = None  # end of the last step
        self.on_step: Callable[[], object] = lambda: None
        self.size = 1
        self._pending = 0  # samples of this worker since the last step
        self.committed = (0, 0)  # steps and samples at the last commit
        self._by_commit = True

    def watch(self, state: Any) -> None:
        """Hook the optimizer and the models in a script's state."""
        values = [handler.value for handler in handlers_of(state).values()]
        optimizers = [value for value in values if isinstance(value, torch.optim.Optimizer)]
        for value in values:
            if isinstance(value, torch.nn.Module):
                value.register_forward_pre_hook(self._forward, with_kwargs=True)
        if optimizers:
            self._by_commit = False
            optimizers[0].step = self._counted(optimizers[0].step)  # type: ignore[method-assign]

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)  # schedulers set attributes on it
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            self._stepped()
            return result

        return counted

    def _forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if not module.training or not torch.is_grad_enabled():
            return
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.dim():
                self._pending += int(value.shape[0])
                break

    def _stepped(self) -> None:
        batch, self._pending = self._pending * self.size, 0
        self.step += 1
        self.samples += batch
        self.stepped_s = time.monotonic()
        self.pace.note(batch)
        self.on_step()

    # ---- with the state ------------------------------------------------------------------

    def commit(self) -> None:
        """Record that the script committed its state."""
        if self._by_commit:
            self._stepped()
        self.keep()

    def keep(self) -> None:
        """Record the present counters as those of the committed state."""
        self.committed = (self.step, self.samples)

    @property
    def is_ahead(self) -> bool:
        """Return whether there were steps since the last commit."""
        return self.committed != (self.step, self.samples)

    def restore(self) -> None:
        """Reset the counters to the last commit, like the script's state."""
        self.step, self.samples = self.committed

    def enter(self, step: int, samples: int, size: int) -> None:
        """Set the counters that all members agreed on."""
        self.step, self.samples, self.size = step, samples, size
        self._pending = 0
        self.pace.forget()


class Saver(CheckpointDisk):
    """Writes what the script committed to disk at intervals; on rank 0.

    Horovod keeps a committed state in memory only; it is lost when all members are. This converts a
    ``hvd.elastic.State`` to one of our checkpoint files (``checkpoint``: atomic, fenced, never
    pickled) and back. Objects with a ``state_dict`` are saved by it.
    """

    def __init__(self, control: Control, counts: Counts, reports: Reports) -> None:
        super().__init__(control, control.config.checkpoint_dir)
        self._interval_s = control.config.checkpoint_interval_s
        self._counts, self._reports = counts, reports
        self._last_s = float("-inf")  # the first commit is written
        self._origin = OriginCheck(control.config)

    def is_due(self) -> bool:
        """Return whether a committed state should be written now."""
        return time.monotonic() - self._last_s >= self._interval_s and not self.is_busy()

    def save_aside(self, state: Any, writer: Fence) -> None:
        """Write what was just committed, in a thread; Horovod's committed values are copies."""
        self._last_s = time.monotonic()
        self.aside(self._writing(state, writer))

    def save_now(self, state: Any, writer: Fence) -> None:
        """Write what was committed; returns when it is on disk."""
        self.now(self._writing(state, writer))

    def load(self, state: Any) -> tuple[str, int, int]:
        """Load the newest checkpoint into the state; return its path, steps and samples.

        The path is "" if there is none; the state is then unchanged.

        Raises:
            ElasticError: BFT-1408 when it is of another script, BFT-1450 when it was trained
                with other arguments.
        """
        saved = checkpoint.find(self.directory, (LAYOUT,), newest=TellingSearch(self._control))
        if saved is None:
            return "", 0, 0
        own_rates = OwnRates(state)
        goes_own_way = self._origin.admit(saved.header, saved.source)
        tree = checkpoint.decode(saved.header["structure"], saved.tensors)
        try:
            put_back(state, tree)
        except (KeyError, RuntimeError, ValueError) as problem:
            why = str(problem).partition("\n")[0][:200]
            raise ElasticError(
                "BFT-1408",
                f"The checkpoint {saved.source} was written by a different script: {why}.",
                "Name another --checkpoint-dir, or remove the old checkpoints.",
            ) from None
        if goes_own_way:
            changes = own_rates.put_back()
            self._control.send(remark_of(changes, int(saved.header["step"])))
        self._reports.load_state_dict(saved.header.get("reports", NO_REPORTS))
        return saved.source, int(saved.header["step"]), int(saved.header["samples"])

    def _writing(self, state: Any, writer: Fence) -> Callable[[], object]:
        structure, tensors = checkpoint.encode(committed(state), "hvd.elastic.State")
        step, samples = self._counts.committed
        where = {"step": step, "samples": samples, "reports": self._reports.state_dict()}
        header = {"layout": LAYOUT, **where, "structure": structure, **self._origin.header()}
        parts = checkpoint.parts_of(header, tensors)
        return partial(self.write, parts, writer, step=step, samples=samples, layout=LAYOUT)


def committed(state: Any) -> dict[str, Any]:
    """Return the last committed values of a ``TorchState`` or ``ObjectState``."""
    objects = {name: _body_of(value) for name, value in objects_of(state).items()}
    handlers = {name: _saved_by(handler) for name, handler in handlers_of(state).items()}
    return {"objects": objects, "handlers": handlers}


def _body_of(value: Any) -> dict[str, Any]:
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return {"state_dict": value.state_dict()}
    return {"value": value}


def _saved_by(handler: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(handler).items() if name.startswith(SAVED)}


def put_back(state: Any, tree: Mapping[str, Any]) -> None:
    """Set both the committed and the present values of a state.

    Raises:
        KeyError, RuntimeError, ValueError: they do not fit.
    """
    objects: dict[str, Any] = dict(objects_of(state))
    handlers: dict[str, Any] = dict(handlers_of(state))
    if set(objects) != set(tree["objects"]) or set(handlers) != set(tree["handlers"]):
        raise ValueError("its values have other names")
    for name, body in tree["objects"].items():
        if "state_dict" in body:
            objects[name].load_state_dict(body["state_dict"])
        else:
            objects[name] = body["value"]
    for name, values in tree["handlers"].items():
        vars(handlers[name]).update(values)
    set_objects(state, objects)
    state.restore()


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
            self.control.say_warm()
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
                    loss = str(problem).partition("\n")[0][:300] or type(problem).__name__
                except self.change_errors:
                    loss = ""
                else:
                    self._finish(state)
                    return result
                needs_sync = self._change(state, loss)

        return wrapper

    def _report(self, value: Any) -> None:
        if self.commit is not None:
            step, epoch, samples = self.position()
            self.report(value, step=step, epoch=epoch, samples=samples)

    # ---- one generation after the other ----------------------------------------------------

    def _guess(self, others: int) -> None:
        sets: Any = importlib.import_module("horovod.common.process_sets")
        self._is_guessing = True
        self.world.guess = (others, others + 1)
        # Optimizers of workers outside the process set do nothing.
        sets.global_process_set.ranks = list(range(others + 1))

    def _begin(self, state: Any) -> None:
        """Register the script's state; a joiner joins the others here."""
        self._state = state
        if self._is_guessing:
            self.world.guess = None
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
            self.control.say_warm()
            self._form()
            state.on_reset()  # it was built for a guessed rank and size
        self._notice(state)

    def _change(self, state: Any, loss: str) -> bool:
        """Go to the next generation; return whether the state has to be exchanged.

        ``loss``: how a member was lost; empty: none was.
        """
        before = self._formed
        if loss:
            self.world.cut()  # first: others may be waiting for us in an exchange
            state.restore()
            self._counts.restore()
            self.interrupted(loss)
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
        if loss or before is None or self._formed is None:
            return True
        ids = {member.worker_id for member in before.members}
        needs_sync = any(member.worker_id not in ids for member in self._formed.members)
        if not needs_sync:
            # Horovod omits this: its samplers would keep the shares of the old size.
            for handler in handlers_of(state).values():
                if hasattr(handler.value, "record_batch"):
                    handler.value.reset()
        return needs_sync

    def _form(self) -> None:
        """Wait for a generation and form it, or the one that supersedes it."""
        while True:
            commit = self.wait()
            me = self.control.config.worker_id
            if not any(member.worker_id == me for member in commit.members):
                self._leave(commit)
            self._formed = commit
            broken = self.world.form(commit, self._init, self._shutdown)
            if not isinstance(broken, Broken):
                return
            self.interrupted(broken.reason)

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
            step, samples, resumed, reports = share(state, mine)
            self.reports.load_state_dict(reports)
            if resumed:
                state.on_reset()  # values that depend on the size came from the checkpoint
                self._notice(state)
        self.stepped_s = self._counts.stepped_s
        self._counts.enter(step, samples, self.world.size)
        took_s = time.monotonic() - started_s
        rank, size = self.world.rank, self.world.size
        if self.commit is None:
            part_streams(self.control.config.seed, rank)
        self.entered(commit, rank, size, transfer_s=took_s, resumed_from=resumed)

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
        if self.commit is not None and self._counts.pace.is_due():
            self.control.send(self._counts.pace.progress(self.info()))

    def position(self) -> tuple[int, int, int]:
        """Return the steps, epochs and samples so far."""
        epoch = getattr(self._state, "epoch", 0)
        if not isinstance(epoch, int):
            epoch = 0
        return self._counts.step, epoch, self._counts.samples

    # ---- ends ----------------------------------------------------------------------------------

    def _leave(self, commit: Commit) -> NoReturn:
        if self.is_saver(commit) and self._has_state:
            self._saver.save_now(self._state, self.fence())
        self.leave(commit, self._counts.step)

    def _finish(self, state: Any) -> None:
        self.control.is_over = True
        if self.world.rank == 0:
            self._save()
            self._counts.keep()
            self._saver.save_now(state, self.fence())
        self.finished()

    def _script_ended(self) -> None:
        self.control.send(
            Failed(code=NO_SCRIPT.code, cause=NO_SCRIPT.cause, next_step=NO_SCRIPT.next_step)
        )
        die(NO_SCRIPT.cause, status=1)


def main() -> None:
    """Run the script given on the command line."""
    n_others, script, *args = sys.argv[1:]
    sys.argv = [script, *args]
    sys.path[0] = first_path(script)
    config = control_module.current().config
    lengths = {"EPOCHS": config.epochs, "SAMPLES": config.samples, "STEPS": config.steps}
    for name, length in lengths.items():
        if length is not None:
            os.environ[f"BFT_{name}"] = str(length)
    install(Session(control_module.current(), others=int(n_others)))
    run_main(script)


def install(session: Session) -> None:
    """Patch Horovod to use ``session`` instead of ``horovodrun`` and its driver.

    Raises:
        ElasticError: BFT-1430 when the interpreter has no Horovod.
    """
    os.environ["HOROVOD_ELASTIC"] = "1"  # read by optimizers and NCCL contexts
    os.environ.setdefault("HOROVOD_CONTROLLER", "gloo")
    os.environ.setdefault("HOROVOD_CPU_OPERATIONS", "gloo")
    try:
        basics: Any = importlib.import_module("horovod.common.basics")
        elastic: Any = importlib.import_module("horovod.common.elastic")
    except ImportError as problem:
        raise ElasticError(
            "BFT-1430",
            f"The interpreter {Path(sys.executable)} cannot import Horovod: {problem}.",
            "Build it with scripts/build_horovod.sh VENV, or name another --interpreter.",
        ) from None
    kind = basics.HorovodBasics
    session.world.guess_for(kind)
    session.lost_errors = (elastic.HorovodInternalError,)
    session.change_errors = (elastic.HostsUpdatedInterrupt,)
    init = kind.init

    def ours(self: Any, *args: Any, **kwargs: Any) -> None:
        session.init(lambda: init(self, *args, **kwargs), self.shutdown)

    kind.init = ours
    # Before horovod.torch.elastic and similar modules import the name.
    elastic.run_fn = session.run_fn
