"""Members of a generation are alike: compared in every update, before it is applied.

Every vote carries a digest of the light state (learning rates and other options of the optimizer,
scheduler, counters, loss scaler, small extra state) as integers of six bits and their squares. The
sums over the members, exact in 32-bit floats for up to 4,000 of them, tell every member the same:
all digests are equal if and only if the count times the sum of the squares is the square of the
sum. Only after a difference do members exchange what they have, and end with an error that
names it, or take rank 0's schedule (``adopt``).

Parameters and the optimizer's tensors are compared by sums of their bytes, on their device, where
rank 0 asks for it in a vote: before each checkpoint, and as often as costs ``SHARE`` of the time.
Only equal builds of torch on equal processors must agree bit for bit, and members that had samples
are not compared with those that had none, where the script did not run. Buffers and the random
streams of ranks differ by design and are left out.

Used by ``run`` and the reducers.
"""

from __future__ import annotations

import json
import logging
import platform
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch

from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.elastic.gradients import light
from bftrainer.elastic.gradients.in_common import ExtraComparison, may_differ, name_in
from bftrainer.elastic.gradients.light import LeafDifference
from bftrainer.elastic.network.collective import Broken, settle
from bftrainer.elastic.network.group import Group
from bftrainer.elastic.network.shards import local_of
from bftrainer.elastic.script.models import parts_of
from bftrainer.elastic.state.remarks import Remarks
from bftrainer.elastic.state.state import Counters, State
from bftrainer.ground.errors import ElasticError

log = logging.getLogger("bftrainer.elastic")

ERROR, ADOPT, OFF = "error", "adopt", "off"
MODES: Final = (ERROR, ADOPT, OFF)
SHARE: Final = 0.001  # of the time is spent on comparing tensors
REST_S: Final = 1.0  # least time between a new generation and the first comparison
MOST_GROUPS: Final = 16  # of the optimizer; of more only the learning rates count in a vote
PIECE_BITS: Final = 6
PIECES: Final = light.DIGEST_BITS // PIECE_BITS
WIDTH: Final = 2 + 2 * PIECES  # of the votes: the count, pieces, their squares, a request
MOST_SHOWN: Final = 3  # differences in an error
MOST_VALUE: Final = 200  # characters of a value that is exchanged
PAGE: Final = "docs/howto/same-on-all-workers.md"
_MASK: Final = (1 << PIECE_BITS) - 1
_SHIFTS: Final = tuple(range(0, PIECE_BITS * PIECES, PIECE_BITS))
_SQUARES: Final = tuple(float(piece * piece) for piece in range(_MASK + 1))
_PLACES: Final = range(1, 1 + PIECES)  # of the pieces in the votes
_ADOPTED: Final = "adopted"  # kind of a remark
_WORD_BYTES: Final = 8
_MIX: Final = 0x9E3779B97F4A7C15  # odd; the place of a tensor counts


def votes_of(number: int, *, asks: bool) -> list[float]:
    """Return what a member with samples adds to the votes.

    Args:
        number: its digest.
        asks: that the tensors be compared.
    """
    # Comprehensions and tables, not a loop, for speed: this runs in every update.
    pieces = [number >> shift & _MASK for shift in _SHIFTS]
    return [1.0, *pieces, *[_SQUARES[piece] for piece in pieces], float(asks)]


def are_equal(sums: Sequence[float]) -> bool:
    """Return whether all that voted have the same digest, from the sums of their votes."""
    n_votes = sums[0]
    for place in _PLACES:
        piece = sums[place]
        if n_votes * sums[place + PIECES] != piece * piece:
            return False
    return True


def digests_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return a digest of each tensor's bytes, made on its device.

    It is the sum of the bytes as 64-bit integers: the same bytes in another order are not seen.
    """
    sums: list[torch.Tensor] = []
    for tensor in tensors:
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        if data.storage_offset() % _WORD_BYTES or data.data_ptr() % _WORD_BYTES:
            data = data.clone()  # words must be aligned, and the same wherever the tensor is
        whole = data.numel() // _WORD_BYTES * _WORD_BYTES
        total = data[:whole].view(torch.int64).sum()
        if whole < data.numel():
            total = total + data[whole:].sum(dtype=torch.int64)
        sums.append(total)
    by_device: dict[torch.device, list[int]] = {}
    for place, total in enumerate(sums):
        by_device.setdefault(total.device, []).append(place)
    digests = [0] * len(sums)
    for places in by_device.values():  # one copy to the host for each device
        values = torch.stack([sums[place] for place in places]).tolist()
        for place, value in zip(places, values, strict=True):
            digests[place] = value
    return digests


def together(digests: Sequence[int]) -> int:
    """Return one signed 64-bit number of many."""
    total = 0
    for value in digests:
        total = (total * _MIX + value + 1) & 0xFFFFFFFFFFFFFFFF
    if total >> 63:
        total -= 1 << 64
    return total


class StateComparison:
    """Compares this member's state with that of the others."""

    def __init__(
        self,
        state: State,
        counters: Callable[[], Counters],
        is_save_due: Callable[[], bool],
        mode: str = ERROR,
        *,
        remarks: Remarks | None = None,
    ) -> None:
        """Prepare.

        Args:
            state: the registered objects.
            counters: returns the run's position.
            is_save_due: whether a checkpoint is to be taken.
            mode: one of ``MODES``.
            remarks: takes what a user should know of, but for errors.

        Raises:
            ElasticError: BFT-1403, another mode.
        """
        if mode not in MODES:
            raise ElasticError(
                "BFT-1403",
                f"Run was given equal={mode!r}.",
                f"It is one of {', '.join(map(repr, MODES))}; see {PAGE}.",
            )
        self.mode = mode
        self._state, self._counters, self._is_save_due = state, counters, is_save_due
        self._rank = 0
        self._next_s = 0.0
        self._is_apart = self._is_asked = False
        self._extra = ExtraComparison(state.extra)
        self._remarks = remarks or Remarks(None, state)
        self._likeness = Likeness()

    @property
    def is_on(self) -> bool:
        """Return whether anything is compared."""
        return self.mode != OFF

    def begin(self, rank: int, group: Group | None = None) -> None:
        """Begin a generation, whose members have just been given one state."""
        self._rank = rank
        if self.is_on and group is not None and not group.compares:
            self._remarks.on_old_member()
        self._is_apart = self._is_asked = False
        self._extra.begin()
        self._likeness.is_said = False
        self._next_s = max(self._next_s, time.monotonic() + REST_S)

    # ---- in the votes ----------------------------------------------------------------

    def votes(self, *, has_samples: bool) -> list[float]:
        """Return what this member adds to the votes of the present step.

        A member without samples has not run the script's code before the update.
        """
        if not (self.is_on and has_samples):
            return [0.0] * WIDTH
        asks = self._rank == 0 and (time.monotonic() >= self._next_s or self._is_save_due())
        groups = self._state.optimizer.param_groups
        if len(groups) > MOST_GROUPS:
            rates = [group.get("lr") for group in groups]
            number = light.digest([rates, *self._in_votes()])
        else:
            number = light.digest(self._in_votes(), groups)
        return votes_of(number, asks=asks)

    def begin_step(self) -> None:
        """Have what is on a GPU on its way to the host, before the script works on a batch."""
        if self.is_on:
            self._extra.ask()

    def heard(self, sums: Sequence[float]) -> None:
        """Take the sums of all members' votes."""
        self._is_apart = self.is_on and not are_equal(sums)
        self._is_asked = self.is_on and sums[-1] > 0.0

    def _in_votes(self) -> list[Any]:
        """Return what is compared beside the optimizer's groups."""
        counters, scheduler = self._counters(), self._state.scheduler
        schedule = None
        if scheduler is not None:
            schedule = scheduler.state_dict()
        return [
            schedule,
            (counters.step, counters.epoch, counters.position, counters.samples),
            *self._extra.in_votes(),
        ]

    # ---- after the votes -------------------------------------------------------------

    def settle(
        self, group: Group | None, abandoned: Callable[[], bool], *, has_samples: bool = True
    ) -> Broken | None:
        """Compare what the votes ask for; all members call it, before the update.

        Raises:
            ElasticError: BFT-1438 for a light state, BFT-1439 for tensors that differ.
        """
        if group is None or not (self._is_apart or self._is_asked):
            return None
        exchange = MemberExchange(group, abandoned)
        broken = None
        if self._is_apart:
            broken = self._compare_light(exchange, has_samples=has_samples)
        if self._is_asked and broken is None:
            began_s = time.monotonic()
            broken = self._compare_tensors(exchange, has_samples=has_samples)
            ended_s = time.monotonic()
            self._next_s = ended_s + (ended_s - began_s) / SHARE
        self._is_apart = self._is_asked = False
        return broken

    def _compare_light(self, exchange: MemberExchange, *, has_samples: bool) -> Broken | None:
        answer: dict[str, Any] = {"leaves": None}
        if has_samples:
            answer["leaves"] = self.leaves()
        if self.mode == ADOPT and self._rank == 0:
            answer["schedule"] = self._schedule()
        answers = exchange.objects(answer)
        if isinstance(answers, Broken):
            return answers
        tables = {r: a["leaves"] for r, a in enumerate(answers) if a["leaves"]}
        of_extra: list[LeafDifference] = []
        strict: list[LeafDifference] = []
        for difference in light.differing(tables):
            if may_differ(difference.path):
                of_extra.append(difference)
            else:
                strict.append(difference)
        may_adopt = self.mode == ADOPT and "schedule" in answers[0]
        schedule = ("optimizer.param_groups", *self._schedulers())
        if may_adopt and strict and all(d.path.startswith(schedule) for d in strict):
            self._adopt(answers[0]["schedule"], strict)
        elif strict:
            raise ElasticError(
                "BFT-1438",
                f"The workers of this trainer differ before update {self._counters().step + 1}:"
                f" {_in_words(strict)}.",
                "Compute what a schedule depends on from values that are the same on all workers"
                f" (run.mean(value), run.step_count), see {PAGE}.",
            )
        self._report_extra(of_extra)
        return None

    def leaves(self) -> dict[str, Any]:
        """Return the light state by names, such as "optimizer.param_groups[0].lr"."""
        counters, scheduler = self._counters().as_dict(), self._state.scheduler
        table = light.leaves(self._state.options(), "optimizer.param_groups")
        if scheduler is not None:
            table |= light.leaves(scheduler.state_dict(), "scheduler")
        table |= light.leaves(counters, "counters")
        table |= self._extra.leaves()
        return {path: _bounded(value) for path, value in table.items()}

    def _report_extra(self, differences: Sequence[LeafDifference]) -> None:
        for difference in differences:
            name = name_in(difference.path)
            self._extra.leave_out(name)
            self._remarks.lasts(
                f"extra {name}",
                f"BFT-1438: The workers differ in extra state: {difference}. A checkpoint holds"
                f" that of one of them; see {PAGE}.",
            )

    def _schedulers(self) -> dict[str, Any]:
        schedulers: dict[str, Any] = {}
        if self._state.scheduler is not None:
            schedulers["scheduler"] = self._state.scheduler
        return schedulers | self._extra.schedulers()

    def _schedule(self) -> Any:
        """Return the optimizer's options and the schedulers as JSON can hold them."""
        tree = {
            "groups": self._state.options(),
            "schedulers": {name: s.state_dict() for name, s in self._schedulers().items()},
        }
        structure, tensors = checkpoint.encode(tree)
        values: list[tuple[str, Any]] = []
        for tensor in tensors:
            kind = str(tensor.dtype).removeprefix("torch.")
            values.append((kind, tensor.tolist()))
        return [structure, values]

    def _adopt(self, schedule: Any, differences: Sequence[LeafDifference]) -> None:
        structure, values = schedule
        tensors = [torch.tensor(value, dtype=getattr(torch, kind)) for kind, value in values]
        tree = checkpoint.decode(structure, tensors)
        groups = self._state.optimizer.param_groups
        for group, options in zip(groups, tree["groups"], strict=True):
            group.update(options)
        for name, scheduler in self._schedulers().items():
            scheduler.load_state_dict(tree["schedulers"][name])
        self._remarks.lasts(
            _ADOPTED,
            f"BFT-1438: The workers differ before update {self._counters().step + 1}:"
            f" {_in_words(differences)}. Rank 0's values are taken, now and in further updates"
            f" (equal='adopt'), see {PAGE}.",
        )

    # ---- tensors ---------------------------------------------------------------------

    def _named_tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and the optimizer's tensors, of sharded ones this worker's part."""
        names = {id(p): name for name, p in self._state.model.named_parameters()}
        parameters = self._state.parameters()
        for place, p in enumerate(parameters):
            names.setdefault(id(p), f"parameter {place}")
        tensors = {names[id(p)]: local_of(p.detach()) for p in parameters}
        for part in parts_of(self._state.optimizer):
            for group in part.param_groups:
                for p in group["params"]:
                    for key, value in sorted(part.state.get(p, {}).items(), key=_key):
                        if isinstance(value, torch.Tensor):
                            name = f"optimizer.{key} of {names.get(id(p), 'a parameter')}"
                            tensors[name] = local_of(value.detach())
        return tensors

    def _compare_tensors(self, exchange: MemberExchange, *, has_samples: bool) -> Broken | None:
        tensors = self._named_tensors()
        digests = digests_of(tensors.values())
        facts = self._likeness.facts_of(tensors.values())
        own_kind = self._kind(facts, has_samples=has_samples)
        rows = exchange.rows([together(digests), own_kind, _number_of(facts)])
        if isinstance(rows, Broken):
            return rows
        by_kind: dict[int, set[int]] = {}
        facts_numbers: set[int] = set()
        for digest, kind, facts_number in rows:
            by_kind.setdefault(kind, set()).add(digest)
            facts_numbers.add(facts_number)
        broken = self._tell_unlike(exchange, facts, facts_numbers)
        if broken is not None:
            return broken
        if all(len(numbers) == 1 for numbers in by_kind.values()):
            return None
        by_name = dict(zip(tensors, digests, strict=True))
        answers = exchange.objects({"kind": own_kind, "digests": by_name})
        if isinstance(answers, Broken):
            return answers
        for kind in by_kind:
            tables = {r: a["digests"] for r, a in enumerate(answers) if a["kind"] == kind}
            if differences := light.differing(tables):
                raise self._tensors_differ(differences)
        return None

    def _tell_unlike(
        self, exchange: MemberExchange, facts: Sequence[str], numbers: set[int]
    ) -> Broken | None:
        """Say once in a generation which members are not compared with which."""
        if len(numbers) == 1 or self._likeness.is_said:
            return None
        answers = exchange.objects(list(facts))
        if isinstance(answers, Broken):
            return answers
        self._likeness.is_said = True
        self._remarks.of_generation(
            "unlike",
            "BFT-1446: Parameters are compared bit for bit only between workers with the same"
            f" torch, processor and GPU: {unlike_in_words(answers)}. A difference between these"
            f" would not be seen; see {PAGE}.",
        )
        return None

    def _kind(self, facts: Sequence[str], *, has_samples: bool) -> int:
        """Return a number that members have in common who must agree bit for bit.

        Members without samples are compared among themselves. They have not run the script, which
        may move parameters for a second gradient and back, and then differs from them in the last
        bits; the state of the others is theirs after the update.
        """
        facts_of_kind = list(facts)
        if self._state.shards is not None:
            facts_of_kind.append(str(self._state.shards.node.rank))
        if not has_samples:
            facts_of_kind.append("without samples")
        return _number_of(facts_of_kind)

    def _tensors_differ(self, differences: Sequence[LeafDifference]) -> ElasticError:
        names = ", ".join(d.path for d in differences[:MOST_SHOWN])
        n_hidden = len(differences) - MOST_SHOWN
        if n_hidden > 0:
            names += f" and {n_hidden} more"
        ranks: set[int] = set()
        for difference in differences:
            ranks.update(difference.values)
        return ElasticError(
            "BFT-1439",
            f"The parameters of ranks {', '.join(map(str, sorted(ranks)))} differ before update"
            f" {self._counters().step + 1}, in {names}.",
            "Change parameters only by run.step(), or by the same values on all workers (averages,"
            f" clipping, initial weights), see {PAGE}.",
        )


class Likeness:
    """What workers have in common that compute the same bits."""

    def __init__(self) -> None:
        self.is_said = False  # in this generation, that some differ in it

    @staticmethod
    def facts_of(tensors: Iterable[torch.Tensor]) -> list[str]:
        """Return torch's version, processor and devices."""
        facts = [torch.__version__, platform.machine(), torch.backends.cpu.get_cpu_capability()]
        return [*facts, *sorted({_device_name(tensor.device) for tensor in tensors})]


def unlike_in_words(facts: Sequence[Sequence[str]]) -> str:
    """Return the facts of all ranks as words, with the ranks that have them in common."""
    by_facts: dict[tuple[str, ...], list[int]] = {}
    for rank, facts_of_rank in enumerate(facts):
        by_facts.setdefault(tuple(facts_of_rank), []).append(rank)
    phrases = []
    for common_facts, ranks in by_facts.items():
        phrase = f"{light.in_words_of(ranks)}: torch {', '.join(common_facts)}"
        phrases.append(phrase)
    return "; ".join(phrases)


def _number_of(facts: Sequence[str]) -> int:
    return zlib.crc32(repr(facts).encode())


class MemberExchange:
    """Small values of all members, by rank."""

    def __init__(self, group: Group, abandoned: Callable[[], bool]) -> None:
        self._group, self._abandoned = group, abandoned

    def rows(self, own: Sequence[int]) -> list[list[int]] | Broken:
        """Return each member's row of signed 64-bit integers; all rows have one length."""
        table = torch.zeros(self._group.size, len(own), dtype=torch.int64)
        table[self._group.rank] = torch.tensor(own, dtype=torch.int64)
        broken = settle(self._group.control.all_reduce(table), self._abandoned)
        if broken is not None:
            return broken
        rows: list[list[int]] = table.tolist()
        return rows

    def objects(self, own: Any) -> list[Any] | Broken:
        """Return each member's object, which JSON must be able to hold."""
        data = json.dumps(own).encode()
        lengths = self.rows([len(data)])
        if isinstance(lengths, Broken):
            return lengths
        (longest,) = max(lengths)
        table = torch.zeros(self._group.size, longest, dtype=torch.uint8)
        table[self._group.rank, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        broken = settle(self._group.control.all_reduce(table), self._abandoned)
        if broken is not None:
            return broken
        pairs = zip(table, lengths, strict=True)
        return [json.loads(bytes(row[:length].tolist())) for row, (length,) in pairs]


def _in_words(differences: Sequence[LeafDifference]) -> str:
    text = "; ".join(map(str, differences[:MOST_SHOWN]))
    n_hidden = len(differences) - MOST_SHOWN
    if n_hidden > 0:
        text += f"; and {n_hidden} more"
    return text


def _key(item: tuple[Any, Any]) -> str:
    name, _ = item
    return str(name)


def _bounded(value: Any) -> Any:
    text = repr(value)
    if len(text) <= MOST_VALUE:
        return value
    return f"{text[:MOST_VALUE]}... ({zlib.crc32(text.encode()):08x})"


def _device_name(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
