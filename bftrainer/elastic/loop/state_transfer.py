"""Brings all members of a newly formed group to one state.

The source is the member with the most committed steps; if no member has a state, the newest
checkpoint, else what rank 0's script built. Members that built another model or read other data
are refused. Called by ``membership`` while all members wait.

Population based training (Jaderberg et al., "Population Based Training of Neural Networks",
2017) copies weights and perturbs settings. Where a checkpoint is of another trial, the
options of the optimizers stay those that this script set, and learning rates are taken to where
the schedule is; all else is the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from bftrainer.elastic.checkpoints import checkpoint, resharding
from bftrainer.elastic.checkpoints.passed_over import TellingSearch
from bftrainer.elastic.data import sample_prints
from bftrainer.elastic.data.sample_prints import Prints
from bftrainer.elastic.network.collective import AbandonableCall, Broken, settle
from bftrainer.elastic.network.device import await_kernels, using
from bftrainer.elastic.network.group import Group
from bftrainer.elastic.process import reports
from bftrainer.elastic.process.control import Control, key_of
from bftrainer.elastic.script.batch import NO_PLAN, EpochPlan
from bftrainer.elastic.state import transfer
from bftrainer.elastic.state.continuing import OwnOptions, remark_of
from bftrainer.elastic.state.state import Counters, State, pack, unpack
from bftrainer.elastic.state.writer import CheckpointWriter
from bftrainer.ground.checkpoint_gap import Cost
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import Commit

T = TypeVar("T")
NO_STATE = -1


class MemberStatus(NamedTuple):
    """The status of one member, in integers."""

    step: int  # committed, or NO_STATE
    layout: int  # of the model
    samples: int = 0  # in the dataset
    batch: int = 0  # of the loader
    order: int = 0  # how the loader goes through the samples: shuffling, shards


def of_nodes(standings: Sequence[MemberStatus], per_node: int) -> list[MemberStatus]:
    """Return the status of each node, that of its worker with the fewest steps."""
    nodes = []
    for first in range(0, len(standings), per_node):
        workers = standings[first : first + per_node]
        nodes.append(min(workers, key=lambda status: status.step))
    return nodes


def choose_source(standings: Sequence[MemberStatus]) -> int:
    """Return the rank whose state all take: most committed steps, then lowest rank."""
    return max(range(len(standings)), key=lambda r: (standings[r].step, -r))


def refuse(
    standings: Sequence[MemberStatus], nodes: Sequence[str], source: int, mine: int
) -> ElasticError | None:
    """Return the error of members that cannot train together; ``nodes`` are those of the ranks.

    Raises:
        ElasticError: this worker must end. Members that match the state's source do not: the
            group goes on without the others.
    """
    error = _unlike(standings, nodes)
    if error is None:
        return None
    is_sound = standings[mine][1:] == standings[source][1:]
    if standings[source].step != NO_STATE and is_sound:
        return error
    raise error


def _unlike(standings: Sequence[MemberStatus], nodes: Sequence[str]) -> ElasticError | None:
    if len({status.layout for status in standings}) > 1:
        return ElasticError(
            "BFT-1408",
            "The workers of this trainer built different models.",
            "Build the model from arguments that are the same on every node.",
        )
    for difference, values in (
        ("datasets of different length", [f"{s.samples} samples" for s in standings]),
        ("loaders with different batches", [f"{s.batch} samples" for s in standings]),
        ("loaders with different orders or shards", [f"order {s.order:x}" for s in standings]),
    ):
        if len(set(values)) > 1:
            first_nodes: dict[str, str] = {}
            for value, node in zip(values, nodes, strict=True):
                first_nodes.setdefault(value, node)
            examples = ", ".join(f"{value} on {node}" for value, node in first_nodes.items())
            return ElasticError(
                "BFT-1421",
                f"The workers of this trainer have {difference}: {examples}.",
                "Build the same dataset and DataLoader everywhere; check that all nodes see the"
                " same files.",
            )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Initial:
    """The state that the script built, kept while it may still be needed."""

    tensors: list[torch.Tensor]
    light: dict[str, Any]


class StateTransfer:
    """This worker's state, and its exchange with the other members."""

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
        self.spare: list[torch.Tensor] = []  # the rehearsal's gradients: memory for reuse
        self.initial: Initial | None = None  # until all members have a common state
        self.compared: Sequence[int] = ()  # indices whose samples members compare
        self.prints: Callable[[], Prints] = tuple  # of these samples

    @property
    def step(self) -> int:
        """Committed steps of the state held here, ``NO_STATE`` without one."""
        return self.counters.step if self.has_state else NO_STATE

    def complete(self) -> None:
        """All members have the state: free what was kept in case they had not."""
        self.has_state = True
        self.initial, self.spare = None, []

    def keep_initial(self) -> None:
        """Keep the state that this script built, before a rehearsal or transfer changes it.

        The trainer starts from it in its first generation, and if the only member with a
        state dies while sending it.
        """
        if self.initial is None:
            self.initial = Initial(
                tensors=[t.detach().cpu().clone() for t in self.state.model_tensors()],
                light=self.state.snapshot_light(),
            )

    def agree(self, commit: Commit, group: Group | None, rank: int) -> Broken | str:
        """Give every member the state with the most committed steps.

        Returns the checkpoint that the state was loaded from, "" if none was.
        """
        mine = MemberStatus(
            step=self.step,
            layout=self.state.layout() if group is not None else 0,
            samples=self._plan.samples,
            batch=self._plan.batch,
            order=self._plan.order_id(),
        )
        table = [[*mine]] if group is None else self._exchange(commit, group, mine)
        if isinstance(table, Broken):
            return table
        everybody = standings = [MemberStatus(*row[: len(mine)]) for row in table]
        copies = group
        if self.state.shards is not None:
            self.state.shards.reshard()
            per_node = self.state.shards.node.size
            standings, rank = of_nodes(standings, per_node), rank // per_node
            if group is not None:
                copies = group.copies
        source = choose_source(standings)
        if problem := refuse(standings, self._nodes(commit, len(standings)), source, rank):
            return Broken(reason=str(problem))
        if (group is not None and group.compares) and (
            problem := sample_prints.refuse(
                [sample_prints.decoded(row[len(mine) :]) for row in table],
                self.compared,
                self._nodes(commit, group.size),
                source=choose_source(everybody),
                mine=group.rank,
                has_state=standings[source].step != NO_STATE,
            )
        ):
            return Broken(reason=str(problem))
        resumed = ""
        if standings[source].step == NO_STATE and source == rank:
            resumed = self._load_first()
        if group is None:
            return resumed
        best = standings[source]
        lacking = [
            member
            for member, status in enumerate(standings)
            if member != source and (status != best or status.step == NO_STATE)
        ]
        broken = None
        if lacking and copies is not None:
            chain = [source, *lacking]
            broken = self.move(copies, chain, overtaken(self.control, commit))
        if broken is None:
            root = source * (group.size // len(standings))
            broken = self._share_buffers(commit, group, root)
        if broken is not None:
            return broken
        return resumed

    def _exchange(
        self, commit: Commit, group: Group, mine: MemberStatus
    ) -> list[list[int]] | Broken:
        """Return the status of each member, and the prints of its samples, in integers.

        A group with a member of an earlier release has no prints.
        """
        prints = sample_prints.encoded(self.prints()) if group.compares else []
        row = torch.tensor([*mine, *prints])
        table = torch.zeros((group.size, len(row)), dtype=torch.long)
        table[group.rank] = row
        broken = settle(group.control.all_reduce(table), overtaken(self.control, commit))
        if broken is not None:
            return broken
        rows: list[list[int]] = table.tolist()
        return rows

    @staticmethod
    def _nodes(commit: Commit, size: int) -> list[str]:
        members = sorted(commit.members, key=lambda m: m.rank)
        per_node = max(1, size // len(members))
        return [members[rank // per_node].node for rank in range(size)]

    def _load_first(self) -> str:
        """Load the first state of a run: a checkpoint, or what the script built."""
        state = self.state
        read = resharding.reader(state.parameters(), state.optimizer, state.extra, state.shards)
        newest = TellingSearch(self.control)
        if state.shards is not None:
            node = state.shards.node
            newest = TellingSearch(
                self.control,
                partial(resharding.newest_of_node, node),
                is_first=node.rank == 0,
            )
        saved = checkpoint.find(self.writer.directory, state.layouts, read, newest)
        if saved is None:
            if self.initial is not None:
                self._copy_into_model(self.initial.tensors)
                self.state.restore_light(self.initial.light)
            return ""
        self.writer.cost = Cost.of(saved.header)
        # Rather those before the rehearsal, which may have stepped a schedule.
        options = self.state.options()
        if self.initial is not None:
            options = self.initial.light["groups"]
        own_options = OwnOptions(self.state, options)
        count = len(self.state.model_tensors())
        other_tensors = saved.tensors[count:]
        goes_on = self.writer.origin.continuation(saved.header, saved.source, other_tensors)
        self._copy_into_model(saved.tensors[:count])
        unloaded = goes_on.unloaded if goes_on is not None else frozenset()
        self.counters = self.state.decode_rest(saved.header["structure"], other_tensors, unloaded)
        if goes_on is not None:
            self.control.send(remark_of(goes_on.apply(), self.counters.step))
        if reports.is_inherited(saved.header):
            self.state.resume_epoch()  # it would bring the other trial's options later
            own_options.put_back()
            self.state.extra[reports.KEY].load_state_dict(reports.NO_REPORTS)
        return saved.source

    def move(self, group: Group, chain: list[int], abandoned: Callable[[], bool]) -> Broken | None:
        """Send the state down ``chain``, whose first member has it."""
        link = transfer.link_of(group, chain)
        model_tensors = self.state.model_tensors()
        await_kernels(model_tensors[0].device)  # the transfer's thread has streams of its own
        if link is None:
            if group.data is None:
                return None
            return self._aside(abandoned, lambda: transfer.stand_by(group, chain[0]))
        if link.before is None:
            structure, other_tensors = self.state.encode_rest(self.counters)
            tensors = [*model_tensors, *other_tensors]
            return self._aside(
                abandoned,
                lambda: transfer.send(link, structure, tensors, known=len(model_tensors)),
            )
        # Our own state stays intact until the one that replaces it is complete. Nor may FSDP2's
        # memory be replaced.
        keeps = self.has_state or self.state.shards is not None
        landing = model_tensors
        if keeps:
            landing = list(map(torch.empty_like, model_tensors))
        if not self.has_state:
            self.keep_initial()
        spare, self.spare = self.spare, []
        received = self._aside(abandoned, lambda: transfer.receive(link, landing, spare))
        if isinstance(received, Broken):
            if not keeps:
                self.state.detach_storages()
            return received
        if keeps:
            self._copy_into_model(landing)
        self.counters = self.state.decode_rest(*received)
        self.has_state = True
        return None

    def _aside(self, abandoned: Callable[[], bool], action: Callable[[], T]) -> T | Broken:
        """Run an action that may hang in a side thread, on the model's device."""
        device = self.state.model_tensors()[0].device

        def act() -> T:
            with using(device):
                result = action()
                await_kernels(device)
            return result

        return AbandonableCall(self.control, act).wait(abandoned)

    def _copy_into_model(self, tensors: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for target, value in zip(self.state.model_tensors(), tensors, strict=True):
                target.copy_(value)

    def _share_buffers(self, commit: Commit, group: Group, source: int) -> Broken | None:
        """Broadcast the source's buffers (running averages): each member updated its own."""
        buffers = [buffer for buffer in self.state.buffers() if buffer.numel()]
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
    """Return a test for whether a forming generation is known to be broken.

    Only a newer commit with ``abandon`` counts: if a member left for any newer commit, those
    that have already entered would wait for it.
    """
    key = key_of(commit)

    def is_overtaken() -> bool:
        newer = control.newer_than(key)
        return newer is not None and newer.abandon

    return is_overtaken
