"""A worker's membership: entering, changing and leaving generations.

``run`` calls this at step boundaries; ``control`` supplies the ``Commit`` messages. A change
ends the old generation, forms the new group (giving up an attempt that a newer commit
supersedes), and brings all members to the state with the most committed steps.
"""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from bftrainer.elastic.gradients.buckets import GradientReducer
from bftrainer.elastic.loop.state_transfer import StateTransfer, overtaken
from bftrainer.elastic.network.collective import GROUP_TIMEOUT_S
from bftrainer.elastic.network.group import Broken, FormingGroups, Group
from bftrainer.elastic.process import reports
from bftrainer.elastic.process.control import Control, key_of, leave_end_to_agent
from bftrainer.elastic.process.generations import GenerationInfo, WorkerGenerations
from bftrainer.elastic.process.store import NONCE_BYTES, StoreServer
from bftrainer.elastic.script.batch import NO_PLAN, EpochPlan, Terms, in_words
from bftrainer.elastic.state.state import Counters, State, seed_everything
from bftrainer.elastic.state.writer import CheckpointWriter
from bftrainer.elastic.worker import require_main_guard
from bftrainer.ground.backend_choice import BackendOffer
from bftrainer.ground.protocol import Commit, Member, RankInfo, place_in

log = logging.getLogger("bftrainer.elastic")
LOOPBACK = "127.0.0.1"
NEARLY = 0.9  # a collective begins before we come to wait for it


class Membership(WorkerGenerations):
    """This worker's part in its trainer's generations."""

    def __init__(
        self,
        control: Control,
        state: State,
        counters: Counters,
        *,
        terms_of: Callable[[int, int], Terms] = lambda _size, _told: Terms(),
        new_reducer: Callable[[], GradientReducer] | None = None,
        reduces_alone: bool = False,
        offer: BackendOffer = BackendOffer(),  # noqa: B008 - frozen
        plan: EpochPlan = NO_PLAN,
    ) -> None:
        super().__init__(control)
        self.told = 0  # global batch of the last commit that named one
        self.new_reducer = new_reducer or (lambda: GradientReducer(state.parameters()))
        self._terms_of = terms_of
        self._reduces_alone = reduces_alone
        self.state = state
        state.extra[reports.KEY] = self.reports
        self.writer = CheckpointWriter(control, state)
        self.handover = StateTransfer(control, state, counters, self.writer, plan)
        self.reducer: GradientReducer | None = None
        self.group: Group | None = None
        self.nodes = 1
        self.undo: dict[str, Any] | None = None  # light state when a step failed
        self._why_broken = ""  # the present generation, as far as this worker knows
        self.on_generation_end: list[Callable[[GenerationInfo], object]] = []
        self.on_entered: list[Callable[[GenerationInfo], object]] = []
        self.on_entering: Callable[[Commit], object] = lambda _commit: None
        self.on_waiting: Callable[[], object] = lambda: None  # for others, in a step
        self._shards = shards = state.shards
        is_sharded = shards is not None and shards.node.size > 1
        if shards is not None:
            self.savers = shards.node.size
        self._forming = FormingGroups(control, offer, is_sharded=is_sharded)
        control.on_neighbour_lost = self._drop_group

    # ---- what run asks ---------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        """Steps, samples and epoch of the run."""
        return self.handover.counters

    def position(self) -> tuple[int, int, int]:
        """Return the committed steps, epochs and samples."""
        return self.counters.step, self.counters.epoch, self.counters.samples

    def wants_switch(self) -> bool:
        """Return whether this worker has a commit for a later generation and could enter it now."""
        newer = self.newer()
        return newer is not None and not self._forming.is_slow(newer)

    def _must_abandon_step(self) -> bool:
        self.on_waiting()
        return self.must_abandon()

    def switch_due(self, *, may_abandon: bool = True) -> Commit | None:
        """Return the commit to enter at this boundary, if all members voted for it.

        ``may_abandon``: whether all workers of this node know that the generation is broken.
        """
        newer = self.newer()
        if newer is None:
            return None
        is_agreed = self.reducer is not None and self.reducer.votes == self.size
        is_broken = newer.abandon and may_abandon
        if self.size == 1 or is_broken or is_agreed:
            return newer
        return None

    # ---- changes -----------------------------------------------------------------------

    def enter_first(self) -> None:
        """Join: wait for a commit and enter its generation."""
        if self.control.is_plain:
            require_main_guard()
            self.enter(self._own_commit())
        else:
            self.enter(self.wait())

    def _own_commit(self) -> Commit:
        """Return the commit of a run without an agent: of this worker, or of its node's workers."""
        me = Member(worker_id=self.control.config.member_id, rank=0, node="", address=LOOPBACK)
        shards = self._shards
        if shards is None or shards.node.size == 1:
            return Commit(generation=0, attempt=0, token="", members=(me,))
        invitation = ""
        if shards.node.rank == 0:
            self._store = StoreServer(LOOPBACK)  # as long as the process lives
            self._store.expect(token := secrets.token_hex(NONCE_BYTES))
            invitation = f"{self._store.port} {token}"
        port, _, token = shards.node.first(invitation).partition(" ")
        return Commit(
            generation=0,
            attempt=0,
            token=token,
            members=(me,),
            store_host=LOOPBACK,
            store_port=int(port),
        )

    def recover(self, broken: Broken) -> None:
        """After a failed collective: report it and enter the next generation."""
        waited_s = 0.0 if self.reducer is None else self.reducer.waited_s
        since_s = 0.0 if self.stepped_s is None else time.monotonic() - self.stepped_s
        self._why_broken = why_broken(broken, self.rank, since_s - waited_s, waited_s)
        self._report(broken)
        self.enter(self.wait())

    def enter(self, commit: Commit) -> None:
        """End the present generation and enter ``commit``'s, or the one that supersedes it."""
        if self.undo is not None:
            self.state.restore_light(self.undo)
            self.undo = None
        if self.commit is not None:
            for hook in self.on_generation_end:
                hook(self.info())
        while True:
            self.on_entering(commit)
            self.act_on(commit)
            me = place_in(commit, self.control.config)
            if self.group is not None and not commit.abandon:  # else a kernel may wait for ever
                self.group.await_device()
            if me is None:
                self._leave(commit)
            self._drop_group()
            broken = self._form(commit, me)
            if broken is None:
                return
            self._report(broken)
            commit = self.wait()

    def _report(self, broken: Broken) -> None:
        self._drop_group()  # first: others may be waiting for us in a collective
        self.interrupted(broken.reason)

    def _drop_group(self) -> None:
        if self.reducer is not None:
            self.reducer.let_go()
        if self.group is not None:
            self.group.drop()
            self.group = None

    def _leave(self, commit: Commit) -> NoReturn:
        if self.is_saver(commit) and self.commit is not None:
            try:
                self.writer.save_now(self.counters, self.fence())
            except OSError as problem:
                log.warning("not saved before parking: %s", problem)
        self.leave(commit, self.handover.step)

    # ---- forming a generation ------------------------------------------------------------

    def _form(self, commit: Commit, me: RankInfo) -> Broken | None:
        """Form ``commit``'s group and bring this worker to its common state."""
        group: Group | None = None
        if me.size > 1:
            outcome = self._forming.take(commit, overtaken(self.control, commit))
            if isinstance(outcome, Broken):
                return outcome
            self.group = group = outcome
        started = time.monotonic()
        resumed = self.handover.agree(commit, group, me.rank)
        if isinstance(resumed, Broken):
            return resumed
        self._entered(commit, me, time.monotonic() - started, resumed)
        return None

    def _entered(self, commit: Commit, me: RankInfo, transfer_s: float, resumed: str) -> None:
        if self.commit is None:
            self.writer.come()
        if me.rank == 0 and self.rank != 0:
            self.writer.succeed()
        elif self.counters.step == 0:
            self.writer.begin()
        if commit.abandon and self.commit is not None:
            step = self.counters.step + 1
            loss = _lost(self.commit, commit, self._why_broken)
            sys.stderr.write(f"bftrainer: {loss}: step {step} is redone\n")
        self._why_broken = ""
        self.nodes, size = me.nodes, me.size
        self.handover.complete()
        counters = self.counters
        # Random streams differ by rank and are the same whenever the step is repeated.
        alike = 1 if self._shards is None else self._shards.alike
        seed_everything(counters.seed, *key_of(commit), counters.step, me.rank // alike, 2)
        self.told = commit.batch or self.told
        self.terms = self._terms_of(size, self.told)
        if self.reducer is None and (size > 1 or self._reduces_alone):
            self.reducer = self.new_reducer()
        if self.reducer is not None:
            self.reducer.bind(self.group, self.wants_switch, self._must_abandon_step)
        self._forming.forget(before=key_of(commit))
        backend, is_on_devices = "", False
        if self.group is not None:
            backend, copies = str(self.group.choice), self.group.copies
            is_on_devices = copies is not None and copies.data is not None
        leave_end_to_agent(is_on_devices)
        self.entered(
            commit, me.rank, size, transfer_s=transfer_s, resumed_from=resumed, backend=backend
        )
        if me.rank == 0 and not self.control.is_plain:
            attempt = f"{commit.generation}.{commit.attempt}"
            sys.stderr.write(f"bftrainer: {in_words(self.terms, attempt, backend)}\n")
        for hook in self.on_entered:
            hook(self.info())

    def note_commit(self) -> None:
        """Record that this worker committed a step."""
        self.stepped_s = time.monotonic()
        self.writer.note(self.counters.step)

    def share_after(self, active: int) -> Broken | bool:
        """Send rank 0's state to the members that had no samples in the last step.

        Only the first ``active`` members had samples. The others took part in the average,
        but not in what the script does around its update (clipping, schedules). Returns
        whether this member was one of them.
        """
        if self.group is None:
            return False
        moved = self.handover.move(self.group, [0, *range(active, self.size)], self.must_abandon)
        if isinstance(moved, Broken):
            return moved
        return self.rank >= active


def _lost(old: Commit, new: Commit, why: str) -> str:
    remaining = {member.worker_id for member in new.members}
    nodes = [m.node or m.worker_id for m in old.members if m.worker_id not in remaining]
    number = f"generation {old.generation}.{old.attempt}"
    if nodes:
        return f"lost {', '.join(nodes)} of {number}"
    if why:
        return f"{number} failed ({why})"
    return f"{number} failed"


def why_broken(broken: Broken, rank: int, worked_s: float, waited_s: float) -> str:
    """Return in words what a worker knows of a collective that failed.

    Args:
        broken: how it failed here.
        rank: of this worker.
        worked_s: from its last update until it came to the collective.
        waited_s: from then until it failed.
    """
    if worked_s >= GROUP_TIMEOUT_S:
        return (
            f"rank {rank} was silent for {worked_s:.0f} s between two updates, and members wait"
            f" {GROUP_TIMEOUT_S:.0f} s for each other: let all workers do what takes so long"
        )
    if waited_s >= NEARLY * GROUP_TIMEOUT_S:
        return f"rank {rank} waited {waited_s:.0f} s for another worker, which was silent"
    return f"rank {rank}: {broken.reason.rstrip('.')}"
