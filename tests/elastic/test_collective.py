"""The collectives of a generation: gloo, what drives NCCL, and NCCL where it can run."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from bftrainer.elastic.network.collective import Broken, ExpiredError, settle
from bftrainer.elastic.network.device import DeviceCollective, Stillborn, new_nccl, probe
from bftrainer.elastic.network.group import Group
from bftrainer.elastic.process.store import StoreServer
from tests.conformance.collective import CollectiveConformance, End
from tests.support.pairs import pair
from tests.support.waiting import never

CPU = torch.device("cpu")


@pytest.fixture
def groups(store: StoreServer) -> Iterator[Sequence[Group]]:
    """Both ends of a generation."""
    both = pair(store, 1)
    yield both
    for group in both:
        group.drop()


def driven(groups: Sequence[Group], limit_s: float = 30.0) -> list[DeviceCollective]:
    """Return what drives NCCL, at both ends, with gloo in NCCL's place."""
    both = [DeviceCollective(g.pg, CPU, name="driven", limit_s=limit_s) for g in groups]
    for group in groups:  # nobody else may hold what ends when it is closed
        group.control.pg = None
    return both


class TestGloo(CollectiveConformance):
    @pytest.fixture
    def ends(self, groups: Sequence[Group]) -> Sequence[End]:
        return [End(collective=group.control, device=CPU) for group in groups]


class TestDriverOfNccl(CollectiveConformance):
    """All but ``new_nccl`` itself."""

    @pytest.fixture
    def ends(self, groups: Sequence[Group]) -> Sequence[End]:
        return [End(collective=one, device=CPU) for one in driven(groups)]


def why_no_nccl() -> str:
    if not torch.distributed.is_nccl_available():
        return "this torch has no NCCL"
    if torch.cuda.device_count() < 2:
        return "NCCL wants a GPU for each of two members"
    return ""


@pytest.mark.skipif(bool(why_no_nccl()), reason=why_no_nccl())
class TestNccl(CollectiveConformance):
    @pytest.fixture
    def ends(self) -> Iterator[Sequence[End]]:
        store, made = HashStore(), dict[int, DeviceCollective]()

        def connect(rank: int) -> None:
            made[rank] = new_nccl(store, rank, 2, torch.device("cuda", rank))
            probe(made[rank], 2)

        threads = [threading.Thread(target=connect, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        yield [End(collective=made[rank], device=made[rank].device) for rank in range(2)]
        for one in made.values():
            one.close()


def test_a_device_has_a_deadline_because_nccl_has_none(groups: Sequence[Group]) -> None:
    first, second = driven(groups, limit_s=0.2)
    work = first.all_reduce(torch.ones(1))
    assert settle(work, never) == Broken(reason="a collective did not end within 0.2 s")
    with pytest.raises(ExpiredError):
        work.wait(timedelta(seconds=5))
    assert not work.is_completed()
    second.close()


def test_a_wait_on_a_device_that_was_too_short_goes_on(groups: Sequence[Group]) -> None:
    first, second = driven(groups)
    mine, theirs = torch.ones(1), torch.ones(1)
    work = first.all_reduce(mine)
    with pytest.raises(RuntimeError, match="not ended yet"):
        work.wait(timedelta(milliseconds=1))
    other = second.all_reduce(theirs)
    assert [settle(work, never), settle(other, never)] == [None, None]
    assert mine.item() == theirs.item() == 2.0


def test_a_member_that_dies_breaks_what_waits_for_it(groups: Sequence[Group]) -> None:
    first, second = driven(groups)
    work = first.all_reduce(torch.ones(1))
    second.close()  # as the kernel closes the sockets of a process that died
    broken = settle(work, never)
    assert broken is not None
    assert broken.reason


def test_what_cannot_be_started_is_told_by_its_work_not_to_the_script() -> None:
    class Failed:
        def allreduce(self, _tensors: list[torch.Tensor]) -> None:
            raise RuntimeError("NCCL communicator was aborted\nand so on")

    work = DeviceCollective(Failed(), CPU, name="failed").all_reduce(torch.ones(1))
    assert isinstance(work, Stillborn)
    assert settle(work, never) == Broken(reason="NCCL communicator was aborted")


def test_a_probe_that_adds_up_wrongly_is_refused(groups: Sequence[Group]) -> None:
    first, second = driven(groups)
    other = second.all_reduce(torch.full((1,), 5.0))
    with pytest.raises(RuntimeError, match="the sum over 2 members was 6"):
        probe(first, 2)
    assert settle(other, never) is None


@pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="this torch has NCCL")
def test_a_torch_without_nccl_says_so() -> None:
    with pytest.raises(ImportError, match="ProcessGroupNCCL"):
        new_nccl(HashStore(), 0, 1, torch.device("cuda", 0))


class Slow:
    """A back end whose threads take their time to end, as gloo's do."""

    def __init__(self, gate: threading.Event, *, aborts_slowly: bool) -> None:
        self._gate = gate
        self._aborts_slowly = aborts_slowly

    def abort(self) -> None:
        if self._aborts_slowly:
            assert self._gate.wait(60)

    def __del__(self) -> None:
        assert self._gate.wait(60)


def test_an_old_generation_is_torn_down_beside_the_training() -> None:
    """Were it not, closing would wait for the gate, which opens only after it."""
    gate = threading.Event()
    data = DeviceCollective(Slow(gate, aborts_slowly=True), CPU, name="slow")
    with socket.socket() as connection:
        group = Group(Slow(gate, aborts_slowly=False), connection, 0, 2, data)
        group.drop()
        assert connection.fileno() == -1
    assert not group.is_gone(0.05)
    gate.set()
    assert group.is_gone(60.0)
