"""Who has the state, and how the others of a generation get it.

A group that has just formed comes in; equal state on all its members goes out: from
the member with most committed steps, from a copy or the newest checkpoint, or from what
rank 0's script built. Called by ``membership`` while everybody waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from bftrainer.elastic import resuming, transfer
from bftrainer.elastic.control import Control, key_of
from bftrainer.elastic.device import await_kernels, using
from bftrainer.elastic.group import Broken, Group, in_side_thread, settle
from bftrainer.elastic.member_status import NO_STATE, MemberStatus, choose_source, refuse
from bftrainer.elastic.protocol import Commit
from bftrainer.elastic.replica_transfer import Asker
from bftrainer.elastic.sampler import NO_PLAN, EpochPlan
from bftrainer.elastic.state import Counters, State, pack, unpack
from bftrainer.elastic.writer import CheckpointWriter

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Initial:
    """What a script built, as long as it may be needed."""

    tensors: list[torch.Tensor]
    light: dict[str, Any]


class StateTransfer:
    """This worker's state among the other members'."""

    def __init__(
        self,
        control: Control,
        state: State,
        counters: Counters,
        writer: CheckpointWriter,
        plan: EpochPlan = NO_PLAN,
    ) -> None:
        self.control = control
        self._plan = plan
        self.state = state
        self.counters = counters
        self.writer = writer
        self.has_state = False
        self.spare: list[torch.Tensor] = []  # the rehearsal's gradients, as memory
        self.initial: Initial | None = None  # until there is a common state

    @property
    def step(self) -> int:
        """Committed steps of the state held here, ``NO_STATE`` without one."""
        return self.counters.step if self.has_state else NO_STATE

    def complete(self) -> None:
        """All members have the state: let go of what was kept for other outcomes."""
        self.has_state = True
        self.initial, self.spare = None, []

    def keep_initial(self) -> None:
        """Keep what this script built: the trainer may have to start from it.

        That is so in the very first generation, and when the only member with a state
        dies while handing it over. Called before a rehearsal or a transfer changes it.
        """
        if self.initial is None:
            self.initial = Initial(
                tensors=[t.detach().cpu().clone() for t in self.state.model_tensors()],
                light=self.state.snapshot_light(),
            )

    def agree(self, commit: Commit, group: Group | None, rank: int) -> Broken | str:
        """Give every member the state of the one that is furthest.

        Returns the checkpoint the state came from, if any.
        """
        mine = MemberStatus(
            step=self.step,
            layout=self.state.layout() if group is not None else 0,
            samples=self._plan.samples,
            batch=self._plan.batch,
            order=self._plan.order_id(),
        )
        standings = [mine] if group is None else self._exchange(commit, group, mine)
        if isinstance(standings, Broken):
            return standings
        source = choose_source(standings)
        if problem := refuse(standings, self._nodes(commit, len(standings)), source, rank):
            return Broken(reason=str(problem))
        resumed = ""
        if standings[source].step == NO_STATE and source == rank:
            resumed = self._found(commit)
        if group is None:
            return resumed
        best = standings[source]
        lacking = [
            r for r, s in enumerate(standings) if r != source and (s != best or s.step == NO_STATE)
        ]
        broken = None
        if lacking:
            chain = [source, *lacking]
            broken = self.move(group, chain, overtaken(self.control, commit))
        if broken is None:
            broken = self._share_buffers(commit, group, source)
        return resumed if broken is None else broken

    def _exchange(
        self, commit: Commit, group: Group, mine: MemberStatus
    ) -> list[MemberStatus] | Broken:
        own = mine.row()
        table = torch.zeros((group.size, len(own)), dtype=torch.long)
        table[group.rank] = torch.tensor(own)
        broken = settle(group.control.all_reduce(table), overtaken(self.control, commit))
        if broken is not None:
            return broken
        return [MemberStatus.of(row) for row in table.tolist()]

    @staticmethod
    def _nodes(commit: Commit, size: int) -> list[str]:
        """Return the node of each rank."""
        members = sorted(commit.members, key=lambda m: m.rank)
        per_node = max(1, size // len(members))
        return [members[rank // per_node].node for rank in range(size)]

    def _found(self, commit: Commit) -> str:
        """Become the source of a run's first state: a copy, a checkpoint, the script's own."""
        trainer_id = self.control.config.trainer_id
        asker = Asker(trainer_id=trainer_id, generation=commit.generation)
        found = resuming.find(
            self.writer.directory, self.control.recall, asker, self.state.layout()
        )
        if found is None:
            if self.initial is not None:
                self._copy_into_model(self.initial.tensors)
                self.state.restore_light(self.initial.light)
            return ""
        count = len(self.state.model_tensors())
        self._copy_into_model(found.tensors[:count])
        self.counters = self.state.decode_rest(found.header["structure"], found.tensors[count:])
        return found.source

    def move(self, group: Group, chain: list[int], abandoned: Callable[[], bool]) -> Broken | None:
        """Pass the state down ``chain``, whose first member has it."""
        link = transfer.link_of(group, chain)
        own = self.state.model_tensors()
        await_kernels(own[0].device)  # the transfer's thread has streams of its own
        if link is None:
            if group.data is None:
                return None
            stood_by = self._aside(abandoned, lambda: transfer.stand_by(group, chain[0]))
            return stood_by if isinstance(stood_by, Broken) else None
        if link.before is None:
            structure, rest = self.state.encode_rest(self.counters)
            sent = self._aside(
                abandoned,
                lambda: transfer.send(link, structure, [*own, *rest], known=len(own)),
            )
            return sent if isinstance(sent, Broken) else None
        if self.has_state:
            # What we hold stays whole until what replaces it is complete.
            landing = [torch.empty_like(t) for t in own]
        else:
            self.keep_initial()
            landing = own
        spare, self.spare = self.spare, []
        received = self._aside(abandoned, lambda: transfer.receive(link, landing, spare))
        if isinstance(received, Broken):
            if not self.has_state:
                self.state.detach_storages()
            return received
        if self.has_state:
            self._copy_into_model(landing)
        self.counters = self.state.decode_rest(*received)
        self.has_state = True
        return None

    def _aside(self, abandoned: Callable[[], bool], action: Callable[[], T]) -> T | Broken:
        """Do what may hang in a side thread, with the model's device as its own."""
        device = self.state.model_tensors()[0].device

        def act() -> T:
            with using(device):
                result = action()
                await_kernels(device)
            return result

        return in_side_thread(self.control, abandoned, act)

    def _copy_into_model(self, tensors: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for target, value in zip(self.state.model_tensors(), tensors, strict=True):
                target.copy_(value)

    def _share_buffers(self, commit: Commit, group: Group, source: int) -> Broken | None:
        """Give all members the source's running averages: each kept its own since."""
        buffers = [b for b in self.state.buffers() if b.numel()]
        if not buffers:
            return None
        flat = pack(buffers)
        work = group.control.broadcast(flat, source)
        broken = settle(work, overtaken(self.control, commit))
        if broken is not None:
            return broken
        unpack(flat, buffers)
        return None


def overtaken(control: Control, commit: Commit) -> Callable[[], bool]:
    """Return what tells whether a generation in formation is known to be broken.

    Only a commit that says so counts: members that have entered already would
    otherwise wait for one that left.
    """
    key = key_of(commit)

    def is_overtaken() -> bool:
        newer = control.newer_than(key)
        return newer is not None and newer.abandon

    return is_overtaken
