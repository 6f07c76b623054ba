"""``Run``: the loops and the step of an elastic training script.

The script registers its model, optimizer, scheduler, extra state and loader; the run gives it
epochs and this worker's share of each global batch, and commits updates. Membership changes
only inside the generators, where the next batch is fetched: whatever the script does after
``step()`` is then part of the state that is handed over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from bftrainer.elastic.data.loader import ORDER, Indices, Loader, PerSampleStates, View, least_share
from bftrainer.elastic.gradients import comparison, loss_rule
from bftrainer.elastic.gradients.averaged_passes import averages_of, not_stepped
from bftrainer.elastic.gradients.buckets import OF_NODE, GradientReducer
from bftrainer.elastic.gradients.loss_alarm import LossAlarm
from bftrainer.elastic.gradients.ordered_reducer import OrderedReducer
from bftrainer.elastic.gradients.rates import KEY, Rates, Updater, decided_by
from bftrainer.elastic.loop import try_record
from bftrainer.elastic.loop.common_values import CommonValues
from bftrainer.elastic.loop.membership import Membership
from bftrainer.elastic.loop.run_info import Length, LoggedStep, StepDurations
from bftrainer.elastic.loop.run_phases import LastStep, Pass, RunLife, RunPhase
from bftrainer.elastic.network import device, group, lone_group
from bftrainer.elastic.network.group import Broken
from bftrainer.elastic.network.shards import local_of, shards_of
from bftrainer.elastic.network.shared_values import SharedValues
from bftrainer.elastic.process import control as control_module
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.generations import GenerationInfo
from bftrainer.elastic.process.reports import params
from bftrainer.elastic.script import models
from bftrainer.elastic.script.batch import (
    BatchPiece,
    GlobalBatch,
    LogicalWorkers,
    PerWorkerBatch,
    cutting_of,
)
from bftrainer.elastic.script.late_schedules import LateSchedules
from bftrainer.elastic.script.models import StrayUpdates, end_watch, quiet_schedulers
from bftrainer.elastic.state.remarks import Remarks
from bftrainer.elastic.state.state import Counters, State, seed_everything
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import LEAST_NODES

_misplaced = partial(ElasticError, "BFT-1405")
Hook = Callable[[GenerationInfo], object]


class Run(CommonValues):
    """One elastic training run; see ``docs/reference/python-api.md``."""

    def __init__(
        self,
        model: torch.nn.Module | Sequence[torch.nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        loader: DataLoader[Any],
        *,
        scheduler: Any = None,
        extra: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        samples: int | None = None,
        steps: int | None = None,
        batch: GlobalBatch | PerWorkerBatch | None = None,
        bitwise: LogicalWorkers | None = None,
        indices: Indices | None = None,
        loss: str | None = None,
        equal: str = comparison.ERROR,
        backward_passes: int = 1,
    ) -> None:
        self._control = control = control_module.current()
        self._length = Length.asked(control.config, epochs, samples, steps)
        model = models.plain_model(model, self.no_sync)
        optimizer = models.one_optimizer(optimizer)
        self._loader = Loader(loader, indices=indices)
        self._plan = self._loader.plan
        self._shards = shards = shards_of(model)
        self._remarks = Remarks(control)
        self._strays = self._watches(control, model, optimizer)
        self._late_schedules = LateSchedules(models.parts_of(optimizer))
        self._cutting = cutting = cutting_of(
            batch,
            bitwise,
            loader_batch=self._plan.batch,
            least=least_share(model),
            decided=decided_by(control.config),
            parts=shards.parts if shards is not None else 0,
        )
        self._loader.cutting = cutting
        self._averages = averages_of(backward_passes, cutting, is_sharded=shards is not None)
        self._rates = Rates(cutting, self._plan.batch)
        self._rule = loss_rule.LossRule(loss, model.parameters(), lambda: self._updater.scale)
        self._rule.is_added_up = self._averages == 1
        self._record = try_record.wanted(lambda: self._membership.token)
        registered = self._registered(extra or {})
        self._updater = Updater(optimizer, registered)
        self._rows = PerSampleStates(registered, self._plan.batch, cutting)
        self._state = State(model, optimizer, scheduler, registered, shards=shards)
        self._membership = self._new_membership(control)
        self._listen(self._membership, equal)
        self._life, self._pass, self._last_step = RunLife(), Pass(), LastStep()
        self._light_ahead: dict[str, Any] | None = None  # see ``_enter_before_epoch``
        total = self._length.total(self._plan.epoch_samples, control.config, self._plan.batch)
        self._pace = StepDurations(total)
        self._logged = LoggedStep(control.config)
        self.on_entered(self._logged.entered)
        self._watch_losses()
        if self._record is not None:
            self._keep(self._record)
        self._rule.look(has_parts=cutting.is_parted or not control.is_plain)
        control.on_script_end, control.report = self.finish, self.report

    def _watches(self, control: Control, model: torch.nn.Module, optimizer: Any) -> StrayUpdates:
        """Refuse layers that no run can serve; return what watches the script's calls."""
        watches = []
        if not control.is_plain:  # in one process a group of one is right
            lone_group.refuse_layers(model)
            if self._shards is None:
                watches.append(partial(lone_group.watch, self._remarks.on_lone_group))
        return StrayUpdates(models.parts_of(optimizer), model.parameters(), watches)

    def _new_membership(self, control: Control) -> Membership:
        if self._shards is not None:
            self._shards.require(measures=self._rates.measures, has_rows=self._rows.is_used)
        for place in {p.device for p in self._state.parameters() if p.device.type == "cuda"}:
            if not control.is_plain:
                device.require_free_memory(place)
        counters = Counters(seed=torch.initial_seed() & ((1 << 62) - 1))
        membership = Membership(
            control,
            self._state,
            counters,
            terms_of=lambda size, told: self._rates.terms(size // self._alike, told),
            new_reducer=self._new_reducer,
            reduces_alone=self._cutting.is_parted,
            plan=self._plan,
            offer=group.offer_of(
                control.config.backend,
                self._state.parameters(),
                is_bitwise=self._cutting.logical > 0,
            ),
        )
        handover, loader = membership.handover, self._loader
        handover.compared, handover.prints = loader.compared, loader.prints
        return membership

    def _listen(self, membership: Membership, equal: str) -> None:
        """Have what belongs to a generation begin with it."""
        self._comparison = comparison.StateComparison(
            self._state,
            counters=lambda: membership.counters,
            is_save_due=membership.writer.is_due,
            mode=equal,
            remarks=self._remarks,
        )
        self._remarks.state, self._remarks.step = self._state, lambda: membership.counters.step
        self._on_committed: list[Hook] = []
        self._values = SharedValues(membership.control, membership.newer)
        membership.on_entered += [
            lambda _info: self._rule.forget(),
            self._remarks.begin,
            lambda info: self._comparison.begin(info.rank, membership.group),
            self._begin_values,
        ]
        membership.on_entering = lambda commit: self._values.enters(commit, self.step_count)
        membership.on_waiting = lambda: self._values.waits_in_step(self.step_count)

    def _keep(self, record: try_record.SampleRecord) -> None:
        """Have a record told what happens."""
        record.watch_updates(self._state, self._comparison.leaves)
        record.watch_roots(self._rule)
        self.on_entered(record.entered)
        self.on_committed(record.committed)
        self.on_loss(record.lost)
        self.on_generation_end(lambda i: record.finished(i) if self._control.is_over else None)

    def _watch_losses(self) -> None:
        """Tell of a loss that is NaN or infinite, unless the user allows it; report the mean."""
        alarm = LossAlarm(self._control, self._rule, lambda: self._updater.scale_tensor)
        if (losses := alarm.losses) is None:
            return
        alarm.watch(losses, lambda: not (self._pass.is_empty or self._is_in_vain()))
        self.on_committed(alarm.committed)
        self.on_entered(lambda _info: losses.entered())
        self.on_generation_end(alarm.ended)

    def _registered(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        ours: dict[str, Any] = {}  # their order is that of the state
        if self._rates.measures:
            ours[KEY] = self._rates
        if self._loader.own is not None:
            ours[ORDER] = self._loader.own
        if self._record is not None:
            ours[try_record.KEY] = self._record.made_by
        if self._shards is not None:
            self._shards.check_scaler(extra.values())
        return {**extra, **ours, loss_rule.KEY: self._rule}

    # ---- the loops -------------------------------------------------------------------

    def epochs(self) -> Iterator[int]:
        """Iterate over the remaining epochs, beginning with the trainer's current one."""
        if self._life.is_looping:
            raise _misplaced("run.epochs() was called twice.", "Use one loop over run.epochs().")
        self._life.becomes(RunPhase.JOINING)
        self._strays.enter_loops(self._late_schedules.begin)
        epoch = self._before_first_epoch()
        while not (self._life.has_state and self._is_done()):
            if self._life.has_state:
                epoch = self._membership.counters.epoch
            yield epoch
            if not self._life.has_state:
                raise _misplaced(
                    "An epoch passed without a batch.",
                    "Loop over run.batches() inside run.epochs().",
                )
            counters = self._membership.counters
            if not self._is_done():
                counters.epoch += 1
                counters.position = 0
        self.finish()

    def batches(self) -> Iterator[Any]:
        """Iterate over this worker's shares of the remaining batches of the epoch."""
        if not self._life.is_looping:
            raise _misplaced(
                "run.batches() was called outside run.epochs().",
                "Loop over run.batches() inside run.epochs().",
            )
        if not self._life.has_state:
            yield from self._rehearse()
            self._enter_first()
        if self._light_ahead is not None:
            self._state.restore_light(self._light_ahead)
            self._light_ahead = None
        while True:
            self._boundary()
            batch = self._next_batch()
            if batch == 0:
                if self._is_done() and not self._is_epoch_over():
                    self._state.keep_within_epoch()
                return
            pieces = self._cutting.pieces(batch, *self._division)
            if self._cutting.active(batch, self.size) < self.size:
                self._last_step.short_batch = batch
            else:
                self._last_step.short_batch = None
            if not pieces:
                yield from self._step_without_samples(batch)
            elif len(pieces) == 1:
                yield self._begin(batch, pieces)
                self._require_stepped()
            else:
                yield from self._passes(batch, pieces)

    def step(self) -> bool:
        """Apply the averaged gradients, in place of ``optimizer.step()``.

        Returns True when the update is committed. Returns False in a rehearsal, after a pass
        that is not the last over its global batch, and when a member was lost: the same global
        batch is then served again.
        """
        membership, reducer = self._membership, self._membership.reducer
        if not self._life.has_batch:
            raise _misplaced(
                "run.step() was called without a batch.",
                "Call it exactly once for each batch of run.batches().",
            )
        batch = self._pass.batch
        self._life.steps(is_last=self._pass.is_last)
        self._state.require_as_built()
        self._strays.require_no_other()
        self._late_schedules.require_none()
        while reducer is not None and not reducer.is_finished:
            reducer.finish()  # there was no backward pass, or all were under no_sync
        if reducer is not None:
            reducer.is_in_hand = False
        if self._life.is_rehearsing:
            if reducer is not None:
                reducer.averaged.put_back()
            self._updater.forget()
            return False
        if not self._pass.is_last:
            self._end_pass()
            return False
        self._add_up_rows(batch)
        self._compare()
        self._agree_in_node()
        if membership.size > 1 and reducer is not None and reducer.broken is not None:
            # The step is void: whatever the script does until the next batch is undone.
            reducer.averaged.put_back()
            self._updater.forget()
            self._rule.forget()
            membership.undo = self._state.snapshot_light()
            return False
        if self._cutting.logical:
            self._seed(self._cutting.logical)  # all members draw the same random numbers
        if reducer is not None and reducer.squares is not None:
            passes = self._pass_counts(batch)
            self._rates.measure(batch, passes, reducer.squares, self._updater.scale)
        if self._record is not None:
            self._record.before_update(membership.info(), batch)
        with self._strays.updating():
            self._updater.apply(self._rates.factor(membership.terms.scale))
        self._commit(batch)
        return True

    def finish(self) -> None:
        """Complete the run: write the final checkpoint and report ``Finished``.

        Called at the end of the loops, and at the end of a script that left them early.
        Only rank 0 returns, so that what follows the loops (evaluate, save, print) is done
        once, and of a sharded model all workers of its node. The others exit here with status 0.
        """
        if self._control.is_over or not self._life.has_state:
            return
        if self._comparison.is_on and not self._is_done():
            self._agree_on_end()
        self._control.is_over = True
        end_watch()
        loss_rule.end_looking()
        self._loader.close()
        membership = self._membership
        for hook in membership.on_generation_end:
            hook(membership.info())
        if self._is_epoch_over():
            membership.counters.epoch, membership.counters.position = self.epoch + 1, 0
        self._length.complete(membership.counters)
        goes_on = self.rank < membership.savers
        if goes_on:
            membership.writer.save_now(membership.counters, membership.fence())
        membership.finished()
        if not goes_on:
            raise SystemExit(0)

    # ---- what the script asks and tells --------------------------------------------------

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of this trial; empty outside of a study."""
        return params()

    def report(self, value: Any) -> None:
        """Report a metric of the training as it is now, such as a validation loss.

        Rank 0's counts and is sent; other workers may report it, too. Nothing is reported
        before the first batch, in a rehearsal, and in passes or steps that are undone. A report
        at the same position replaces the one before.

        Raises:
            ElasticError: BFT-1611 when it is not a finite number.
        """
        if self._is_in_vain():
            return
        counters = self._membership.counters
        self._membership.report(
            value,
            step=counters.step,
            epoch=counters.epoch + self._is_epoch_over(),
            samples=counters.samples,
        )

    def should_log(self) -> bool:
        """Return whether this worker is to log the last committed step to a tracker.

        True on rank 0 alone. False in work that is undone, and for a step that was logged before
        the run fell back behind it: a step is never logged twice.
        """
        if not self.is_first or self._is_in_vain():
            return False
        return self._control.is_over or self._logged.admits(self.step_count)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients in here; the next backward pass outside averages them."""
        reducer = self._membership.reducer
        if reducer is None or not reducer.is_listening:
            yield
            return
        reducer.is_listening = False
        try:
            yield
        finally:
            reducer.is_listening = not reducer.is_finished

    def weight(self, weight: Any) -> None:
        """Say what this batch counts by: what its loss was divided by, instead of its samples.

        For a mean over something else than samples, such as tokens without padding: the update
        is then the mean over all workers' tokens. Call it for every batch, before the backward
        pass; with 0 the batch does not count.

        Args:
            weight: a finite number, 0 or more.

        Raises:
            ElasticError: BFT-1405 outside of a batch or after its backward pass; BFT-1432 when it
                is no such number, or the loss is a sum.
        """
        value = loss_rule.weight_in(weight)
        if not self._life.has_batch:
            raise _misplaced(
                "run.weight() was called without a batch.",
                "Call it inside the loop over run.batches().",
            )
        reducer = self._membership.reducer
        if reducer is not None and reducer.is_in_hand:
            reducer.give(value)
        self._rule.refuse_weight()
        self._rule.given = value

    def on_loss(self, hook: Callable[[GenerationInfo, float, loss_rule.LossRule], object]) -> None:
        """Call ``hook`` with each loss of which the script takes the gradient and that counts."""

        def tell(loss: float) -> None:
            if not self._is_in_vain():
                hook(self._membership.info(), loss, self._rule)

        self._rule.on_loss = tell

    def on_generation_end(self, hook: Hook) -> None:
        """Call ``hook`` on every member when a generation ends, before state moves."""
        self._membership.on_generation_end.append(hook)

    def on_entered(self, hook: Hook) -> None:
        """Call ``hook`` whenever this worker has entered a generation."""
        self._membership.on_entered.append(hook)

    def on_committed(self, hook: Hook) -> None:
        """Call ``hook`` after every committed update."""
        self._on_committed.append(hook)

    def _begin_values(self, _info: GenerationInfo) -> None:
        membership = self._membership
        per_node = membership.control.config.local_size
        self._values.begin(membership.commit, membership.rank, per_node)
        self._state.calls = {}

    # ---- joining ---------------------------------------------------------------------

    def _before_first_epoch(self) -> int:
        """Enter at once if there is nothing to rehearse; return the expected epoch."""
        if self._control.is_plain:
            self._enter_first()
            return self.epoch
        control_module.take_sigterm()
        saved = self._membership.writer.peek()
        if self._any(self._length.is_done(saved)):
            # Only the code after the loops is left to run: nothing to rehearse.
            self._control.say_warm()
            self._enter_first()
        elif self._any(saved.is_complete):
            self._enter_before_epoch()
            return self.epoch
        return saved.epoch

    def _enter_before_epoch(self) -> None:
        """Go on from the end of a run that was complete and is asked for more.

        What the script does at the beginning of an epoch (thaw layers, add groups, set a rate) is
        in every other state: it is done before the first batch, where states are handed over. This
        one lacks it, so the script must have the state when it does it.
        """
        light_as_built = self._state.snapshot_light()
        self._control.say_warm()
        if self._enter_first() and not self._membership.counters.position:
            return
        # Others had gone on: what it does now is in their state.
        self._light_ahead = self._state.snapshot_light()
        self._state.restore_light(light_as_built)

    def _rehearse(self) -> Iterator[Any]:
        """Run one step on discarded data while the others train, to warm everything up."""
        membership = self._membership
        if self._any(self._control.newest is not None):
            return  # a commit waits for this worker: join without a rehearsal
        self._loader.prints()  # not while others wait
        membership.handover.keep_initial()
        membership.reducer = self._new_reducer()
        config, least_samples = self._control.config, self._cutting.least
        nodes = int(dict(config.environment).get(LEAST_NODES, "1"))
        shares = nodes * config.local_size // self._alike
        samples = self._cutting.rehearsal(self._plan.batch, shares)
        yield from self._rehearse_with(membership.reducer, samples)
        if self._any(self._rule.is_open()):  # its loss over other samples tells more
            other_samples = samples + 1
            if samples >= 2 * least_samples:
                other_samples = samples // 2
            yield from self._rehearse_with(membership.reducer, other_samples)
        self._life.becomes(RunPhase.JOINING)
        for p in self._state.parameters():
            if p.grad is not None:
                membership.handover.spare.append(local_of(p.grad))
                p.grad = None
        group.rehearse(self._control.config.address)
        self._control.say_warm()

    def _rehearse_with(self, reducer: GradientReducer, samples: int) -> Iterator[Any]:
        self._life.becomes(RunPhase.REHEARSING)
        self._pass.batch, self._rule.batch = samples, self._plan.batch
        self._rule.take(samples)
        reducer.begin(1.0)
        reducer.is_in_hand = True
        self._strays.next_batch()
        self._rows.serve(BatchPiece(start=0, stop=min(samples, self._plan.batch)))
        with quiet_schedulers():
            yield self._loader.rehearsal(samples)
        self._require_stepped()

    def _enter_first(self) -> bool:
        """Enter; return whether that reopened a run that was complete."""
        membership = self._membership
        membership.enter_first()
        self._life.becomes(RunPhase.BETWEEN)
        counters = membership.counters
        if is_reopened := self._length.open(counters):
            self._state.resume_epoch()
        self._control.was_complete = self._is_done()
        if self._is_done() and self.rank == 0:
            sys.stderr.write(
                f"bftrainer: already complete: {counters.epoch} epochs, {counters.samples} samples"
                f" done, {self._length} requested; only the code after the loops runs."
                " To train on, request more.\n"
            )
        return is_reopened

    # ---- one step --------------------------------------------------------------------

    def _boundary(self) -> None:
        """Between two steps: recover, switch generation, save, report progress."""
        membership, last_step = self._membership, self._last_step
        broken: Broken | None = None
        if membership.reducer is not None:
            broken = membership.reducer.broken
        if broken is None and last_step.short_batch is not None:
            broken = self._bring_along(last_step.short_batch)
        last_step.short_batch = None
        may_abandon = self._shards is None or last_step.has_news
        if broken is not None:
            self._pace.forget()
            membership.recover(broken)
        elif commit := membership.switch_due(may_abandon=may_abandon):
            self._pace.forget()
            last_step.has_news = last_step.is_save_due = False
            membership.enter(commit)
        elif self._is_to_save():  # not while others wait to step again
            membership.writer.save_aside(membership.counters, membership.fence())
        if self._pace.is_due():
            self._control.send(self._pace.progress(membership.info(), self._rates.noise_scale))

    def _is_to_save(self) -> bool:
        if self._shards is None:
            return self.rank == 0 and self._membership.writer.is_due()
        is_due, self._last_step.is_save_due = self._last_step.is_save_due, False
        return is_due

    def _any(self, flag: bool) -> bool:
        """Return whether it is so for one of the workers that must do the same."""
        return flag if self._shards is None else self._shards.node.any(flag)

    def _agree_in_node(self) -> None:
        """Where the model is sharded, make known to the node's workers what each of them knows."""
        membership, reducer = self._membership, self._membership.reducer
        if self._shards is None:
            return
        newer = membership.newer()
        is_due = self.rank == 0 and membership.writer.is_due()
        n_broken, n_with_news, n_due = self._shards.node.sums(
            reducer is not None and reducer.broken is not None,
            newer is not None and newer.abandon,
            is_due,
        )
        if reducer is not None and n_broken and reducer.broken is None:
            reducer.broken = Broken(reason=OF_NODE)
        self._last_step.has_news = n_with_news == self._shards.node.size
        self._last_step.is_save_due = n_due > 0

    def _new_reducer(self) -> GradientReducer:
        parameters, shards = self._state.parameters(), self._shards
        reducer: GradientReducer
        if self._cutting.logical:
            reducer = OrderedReducer(
                parameters, self._state.buffers, self._rule, shards, self._comparison
            )
        else:
            reducer = GradientReducer(
                parameters,
                rule=self._rule,
                works_alone=self._cutting.is_parted,
                measures=self._rates.measures,
                shards=shards,
                comparison=self._comparison,
                averages=self._averages,
            )
        if shards is not None:
            shards.weight = reducer.pass_weight
        return reducer

    def _passes(self, batch: int, pieces: Sequence[BatchPiece]) -> Iterator[Any]:
        """Process a share in several passes; only the last one updates."""
        for number in range(len(pieces)):
            data = self._begin(batch, pieces, number)
            try:
                if number < len(pieces) - 1:
                    with quiet_schedulers():
                        yield data
                else:
                    yield data
            finally:  # also when the script leaves its loop here
                self._undo_pass()
            self._require_stepped()

    def _begin(self, batch: int, pieces: Sequence[BatchPiece], number: int = 0) -> Any:
        self._pass.is_last = number == len(pieces) - 1
        self._take_in_hand(batch, pieces[number].samples, number)
        self._pass.is_empty = not pieces[number].samples
        if self._pass.is_empty:  # of a sharded model
            if number == 0:
                self._rows.serve_none()
            return self._loader.rehearsal(self._cutting.least)
        self._rows.serve(pieces[number], number)
        position = self._membership.counters.position
        left_samples = self._length.left(self._membership.counters)
        piece, number = pieces[number], sum(p.samples > 0 for p in pieces[:number])
        data = self._loader.fetch(self._view(), position, batch, left_samples, number)
        if self._record is not None:
            self._record.handed(
                self._membership.info(),
                self._loader.handed,
                at=position + piece.start,
                number=number,
                of=self._loader.plan_of(self._view().seed, self.epoch).epoch_samples,
                may_repeat=self._loader.own is not None,
            )
        if self._cutting.logical:
            self._seed(piece.logical)
        return data

    def _take_in_hand(self, batch: int, samples: int, number: int = 0) -> None:
        """Note that the script now works on ``samples`` samples of a global batch."""
        self._life.becomes(RunPhase.WORKING)
        self._pass.batch, rule = batch, self._rule
        rule.batch, rule.sum_weight = batch, self._plan.batch / self._membership.terms.batch
        rule.take(samples)
        reducer = self._membership.reducer
        if reducer is not None and (self.size > 1 or reducer.works_alone):
            if number == 0:
                self._comparison.begin_step()
            reducer.begin(samples / batch, number, self._pass_counts(batch))
            reducer.is_in_hand = True
        self._strays.next_batch()

    def _end_pass(self) -> None:
        # The script's code after an update (schedules, averages) runs after every pass but
        # must take effect only once, after the last.
        self._updater.forget()
        self._pass.undo = self._state.snapshot_light()
        for p in self._state.parameters():
            p.grad = None

    def _undo_pass(self) -> None:
        """Undo what the script did after a pass that was not the last."""
        if self._pass.undo is not None:
            self._state.restore_light(self._pass.undo)
            self._pass.undo = None
        if self._life.phase is RunPhase.UNCOUNTED:
            self._life.becomes(RunPhase.BETWEEN)

    def _add_up_rows(self, batch: int) -> None:
        """Take all members' rows; if that fails the step is void, as if gradients had failed."""
        membership, reducer = self._membership, self._membership.reducer
        if reducer is None or reducer.broken is None:
            broken = self._rows.add_up(membership.group, batch, membership.must_abandon)
            if reducer is not None and broken is not None:
                reducer.fail(broken)

    def _compare(self) -> None:
        """Compare the members' states as the votes ask; if that fails the step is void."""
        reducer = self._membership.reducer
        if reducer is None or reducer.broken is not None:
            return
        broken = self._comparison.settle(
            self._membership.group,
            self._membership.must_abandon,
            has_samples=reducer.has_samples,
        )
        if broken is not None:
            reducer.fail(broken)

    def _pass_counts(self, batch: int) -> Sequence[int]:
        if not self._cutting.is_parted:
            return [1] * self.size
        size, _ = self._division
        ranks = range(0, size, self._cutting.parts or 1)
        return [len(self._cutting.pieces(batch, size, rank)) for rank in ranks]

    def _seed(self, logical: int) -> None:
        """Bitwise mode: set the random streams of a logical worker for this step."""
        counters = self._membership.counters
        seed_everything(counters.seed, counters.epoch, counters.position, logical, 6)

    def _step_without_samples(self, batch: int) -> Iterator[Any]:
        reducer = self._membership.reducer
        if reducer is None:
            raise RuntimeError("a generation of several members has a reducer")
        reducer.contribute_nothing(self._pass_counts(batch))
        self._rows.serve_none()
        self._add_up_rows(batch)
        self._compare()
        yield from ()

    def _bring_along(self, batch: int) -> Broken | None:
        """Send the state after the last step to members that had no samples in it."""
        outcome = self._membership.share_after(self._cutting.active(batch, self.size))
        if isinstance(outcome, Broken):
            return outcome
        if outcome:
            self._rule.forget()  # the state has it
            self._values.resume(self._state.calls)
            self._note_commit(batch)
        return None

    def _commit(self, batch: int) -> None:
        counters = self._membership.counters
        counters.step += 1
        counters.position += batch
        counters.samples += batch
        self._rule.commit(is_first=self.rank == 0)
        self._note_commit(batch)

    def _note_commit(self, batch: int) -> None:
        membership = self._membership
        membership.note_commit()
        self._pace.note(batch, self._waited_s(batch))
        for hook in self._on_committed:
            hook(membership.info())

    def _waited_s(self, batch: int) -> float | None:
        """Return the wait for other members; None where it says nothing about this worker."""
        membership = self._membership
        if membership.size == 1 or membership.reducer is None or batch != membership.terms.batch:
            return None
        return membership.reducer.waited_s

    def _require_stepped(self) -> None:
        if self._life.has_batch:
            raise not_stepped()

    # ---- where the run is ----------------------------------------------------------------

    def _next_batch(self) -> int:
        counters = self._membership.counters
        if self._is_done():
            return 0
        left_samples = self._length.left(counters)
        return self._loader.batch_at(self._view(), counters.position, left_samples)

    def _is_done(self) -> bool:
        return self._length.is_done(self._membership.counters)

    def _is_epoch_over(self) -> bool:
        position = self._membership.counters.position
        return position > 0 and not self._loader.batch_at(self._view(), position, None)

    def _is_in_vain(self) -> bool:
        """Return whether the script's present work changes nothing."""
        return not self._life.is_counted or self._membership.undo is not None

    @property
    def _alike(self) -> int:
        """Workers of a node that have the same samples."""
        return 1 if self._shards is None else self._shards.alike

    @property
    def _division(self) -> tuple[int, int]:
        """Into how many shares batches are cut, and which is this worker's."""
        return self.size // self._alike, self.rank // self._alike

    def _view(self) -> View:
        counters = self._membership.counters
        size, rank = self._division
        return View(
            seed=counters.seed,
            epoch=counters.epoch,
            generation=self.generation,
            attempt=self._membership.attempt,
            rank=rank,
            size=size,
            told=self._membership.told,
        )
