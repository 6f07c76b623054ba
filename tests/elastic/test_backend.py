"""Which back end a generation takes: all members come to the same, whatever fails where."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bftrainer.elastic.network import device
from bftrainer.elastic.network.collective import settle
from bftrainer.elastic.network.device import DeviceCollective
from bftrainer.elastic.network.group import FormingGroups, Group, new_process_group, offer_of
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.store import StoreServer
from bftrainer.ground import backend_choice
from bftrainer.ground.backend_choice import BackendChoice, BackendOffer, choose
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import WorkerConfig
from tests.elastic.scripts import pretended
from tests.support.pairs import commit_of, group_of, outcomes
from tests.support.waiting import never, wait_for

GPU = [pretended.offer(f"GPU {i}") for i in range(3)]
NO_GPU = pretended.NO_GPU


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DeviceCollective]]:
    """Let gloo do NCCL's work; in here comes what was made."""
    found: list[DeviceCollective] = []

    def new(store: Any, rank: int, size: int, where: torch.device) -> DeviceCollective:
        found.append(pretended.over_gloo(store, rank, size, where))
        return found[-1]

    monkeypatch.setattr(device, "new_nccl", new)
    yield found
    for one in found:
        one.close()


@dataclass(frozen=True)
class Place:
    """A device of a kind that this torch may not know."""

    name: str

    @property
    def type(self) -> str:
        return self.name.partition(":")[0]

    def __str__(self) -> str:
        return self.name


# ---- the choice --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offers", "said"),
    [
        (GPU, "nccl"),
        ([*GPU[:2], NO_GPU], "gloo (rank 2: the model is not on a GPU)"),
        ([GPU[0], GPU[1], GPU[0]], "gloo (ranks 0 and 2 share a GPU)"),
        (
            [GPU[0], BackendOffer(device="GPU 1", version="2.0")],
            "gloo (ranks 0 and 1 have NCCL 1.0 and 2.0)",
        ),
        ([BackendOffer(wanted="gloo")] * 2, "gloo"),
        ([replace(offer, wanted="xccl") for offer in GPU], "xccl"),
        ([replace(offer, wanted="rccl") for offer in GPU], "nccl"),  # so torch calls it
    ],
)
def test_nccl_is_chosen_where_every_member_has_a_gpu_of_its_own(
    offers: list[BackendOffer], said: str
) -> None:
    assert str(choose(offers)) == said


def test_nccl_that_is_demanded_and_cannot_be_is_refused() -> None:
    demanded = [pretended.offer("GPU 0", "nccl"), pretended.offer("GPU 0", "nccl")]
    with pytest.raises(ElasticError, match="ranks 0 and 1 share a GPU") as refusal:
        choose(demanded)
    assert refusal.value.code == "BFT-1414"
    assert "--backend auto" in refusal.value.next_step


@pytest.mark.parametrize(
    ("where", "why_not"),
    [
        (["cpu"], "the model is not on a GPU"),
        (["meta"], "the model is on meta"),
        (["cpu", "meta"], "the model is on cpu and meta"),
    ],
)
def test_a_worker_says_why_it_has_nothing_to_offer(where: list[str], why_not: str) -> None:
    parameters = [torch.empty(1, device=place) for place in where]
    assert offer_of("auto", parameters) == BackendOffer(why_not=why_not)
    assert offer_of("gloo", parameters) == BackendOffer(wanted="gloo")
    with pytest.raises(ElasticError, match=why_not) as refusal:
        offer_of("nccl", parameters)
    assert refusal.value.code == "BFT-1414"


@pytest.mark.parametrize(
    ("wanted", "place", "why_not"),
    [
        ("xccl", "xpu:0", "XCCL was asked for and cannot be used: this torch has no XCCL"),
        ("hccl", "npu:0", "HCCL was asked for and cannot be used: this torch has no HCCL"),
        ("ucc", "cuda:0", "UCC was asked for and cannot be used: this torch has no UCC"),
        ("rccl", "xpu:0", "RCCL was asked for and cannot be used: the model is on xpu:0"),
        ("xccl", "cuda:0", "XCCL was asked for and cannot be used: the model is on cuda:0"),
    ],
)
def test_a_back_end_that_this_torch_lacks_is_refused(wanted: str, place: str, why_not: str) -> None:
    elsewhere: Any = SimpleNamespace(device=Place(place))
    with pytest.raises(ElasticError, match=why_not) as refusal:
        offer_of(wanted, [elsewhere])
    assert refusal.value.code == "BFT-1414"
    assert not offer_of("auto", [elsewhere]).device  # it tries NCCL alone


@pytest.mark.parametrize("is_extended", [False, True])
def test_a_back_end_that_a_package_registers_carries_what_lies_on_its_device(
    store: StoreServer, monkeypatch: pytest.MonkeyPatch, *, is_extended: bool
) -> None:
    """HCCL's package registers it; gloo does its work here."""

    def create(first: Any, *more: Any) -> Any:
        if is_extended:
            return new_process_group(first.store, first.group_rank, first.group_size, "127.0.0.1")
        rank, size, _ = more
        return new_process_group(first, rank, size, "127.0.0.1")

    plugins: Any = torch.distributed.Backend
    plugin = plugins._BackendPlugin(create, is_extended)
    monkeypatch.setitem(plugins._plugins, "HCCL", plugin)
    monkeypatch.setattr(device, "is_on_device", pretended.is_pretended)
    groups = group_of(store, 1, [replace(offer, wanted="hccl") for offer in GPU])
    assert choices(groups) == {BackendChoice(backend="hccl")}
    copies = [torch.ones(3) for _ in groups]
    assert {group.carrier_of(copies[0]).name for group in groups} == {"hccl"}
    works = [g.carrier_of(c).all_reduce(c) for g, c in zip(groups, copies, strict=True)]
    assert [settle(work, never) for work in works] == [None] * 3
    assert [c.tolist() for c in copies] == [[3, 3, 3]] * 3
    works.clear()
    drop(groups)
    assert all(group.is_gone(60.0) for group in groups)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_model_on_a_gpu_is_offered_by_the_gpus_own_name() -> None:
    parameters = [torch.empty(1, device="cuda:0")]
    offer = offer_of("auto", parameters)
    assert offer.place == "cuda:0"
    assert offer.device
    assert offer.version
    assert not offer_of("auto", parameters, is_bitwise=True).device


# ---- the agreement -----------------------------------------------------------------------


def choices(groups: list[Group]) -> set[BackendChoice]:
    return {group.choice for group in groups}


def drop(groups: list[Group]) -> None:
    for group in groups:
        group.drop()


def test_members_with_a_gpu_each_use_it_for_what_lies_on_it(
    store: StoreServer, made: list[DeviceCollective], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "is_on_device", pretended.is_pretended)
    groups = group_of(store, 1, GPU)
    assert choices(groups) == {BackendChoice(backend="nccl")}
    assert {id(group.data) for group in groups} == {id(one) for one in made}
    for values, carrier in ((torch.ones(3), "nccl"), (torch.ones(3, dtype=torch.long), "gloo")):
        assert {group.carrier_of(values).name for group in groups} == {carrier}
        copies = [values.clone() for _ in groups]
        works = [g.carrier_of(c).all_reduce(c) for g, c in zip(groups, copies, strict=True)]
        assert [settle(work, never) for work in works] == [None] * 3
        assert [c.tolist() for c in copies] == [[3, 3, 3]] * 3
    works.clear()
    made.clear()
    drop(groups)
    assert all(group.is_gone(60.0) for group in groups)


def test_members_without_a_gpu_ask_nobody(
    store: StoreServer, made: list[DeviceCollective], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(backend_choice, "choose", asked.append)
    groups = group_of(store, 1, [NO_GPU, NO_GPU])
    assert choices(groups) == {BackendChoice()}
    assert (asked, made) == ([], [])
    drop(groups)


def test_one_member_without_a_gpu_is_enough_for_gloo(
    store: StoreServer, made: list[DeviceCollective]
) -> None:
    groups = group_of(store, 1, [GPU[0], NO_GPU, GPU[1]])
    assert {group.choice.backend for group in groups} == {"gloo"}
    assert groups[0].choice.reason == "rank 1: the model is not on a GPU"
    assert made == []
    drop(groups)


def test_all_members_refuse_what_is_demanded_in_vain(store: StoreServer) -> None:
    demanded = pretended.offer("the only GPU", "nccl")
    for outcome in outcomes(store, 1, [demanded, demanded]):
        assert isinstance(outcome, ElasticError)
        assert outcome.code == "BFT-1414"


@pytest.mark.parametrize("failing", [0, 2])
def test_one_member_whose_probe_fails_makes_all_fall_back(
    store: StoreServer,
    made: list[DeviceCollective],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: int,
) -> None:
    real = device.new_nccl

    def new(store: Any, rank: int, size: int, where: torch.device) -> DeviceCollective:
        if rank == failing:
            raise RuntimeError("NCCL error: no socket interface found")
        return real(store, rank, size, where)

    monkeypatch.setattr(device, "new_nccl", new)
    with caplog.at_level(logging.WARNING):
        groups = group_of(store, 1, GPU)
    said = f"NCCL failed: rank {failing}: NCCL error: no socket interface found"
    assert choices(groups) == {BackendChoice(reason=said)}
    assert [group.data for group in groups] == [None] * 3
    assert said in caplog.text
    # The others' attempts wait for the one that failed; what comes of them is closed.
    copies = [torch.ones(2) for _ in groups]
    works = [g.carrier_of(c).all_reduce(c) for g, c in zip(groups, copies, strict=True)]
    assert [settle(work, never) for work in works] == [None] * 3
    assert [c.tolist() for c in copies] == [[3.0, 3.0]] * 3
    drop(groups)
    del made


def test_a_sum_that_is_wrong_makes_all_fall_back(
    store: StoreServer, made: list[DeviceCollective], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = device.new_nccl

    def new(store: Any, rank: int, size: int, where: torch.device) -> DeviceCollective:
        one = real(store, rank, size, where)
        if rank == 0:
            right = one.all_reduce
            monkeypatch.setattr(one, "all_reduce", lambda tensor: right(tensor.mul_(5)))
        return one

    monkeypatch.setattr(device, "new_nccl", new)
    groups = group_of(store, 1, GPU)
    (choice,) = choices(groups)
    assert choice.reason.startswith("NCCL failed: rank ")
    assert choice.reason.endswith(": the sum over 3 members was 7")
    drop(groups)
    del made


@pytest.mark.parametrize("abandon", [False, True])
def test_a_member_that_does_not_connect_in_time_makes_all_fall_back(
    store: StoreServer,
    made: list[DeviceCollective],
    monkeypatch: pytest.MonkeyPatch,
    abandon: bool,
) -> None:
    """Of three members one hangs in NCCL; nobody waits for it longer than that takes."""
    real = device.new_nccl
    hanging: list[Any] = []

    def new(own: Any, rank: int, size: int, where: torch.device) -> DeviceCollective:
        if rank == 1:
            hanging.append(own)
            own.get("a key nobody ever sets")  # as torch does while it connects
        return real(own, rank, size, where)

    monkeypatch.setattr(device, "new_nccl", new)
    monkeypatch.setattr(device, "HURRIED_S" if abandon else "PROBE_S", 0.3)
    groups = group_of(store, 1, GPU, abandon=abandon)
    wait_for(lambda: hanging, what="it hangs")
    (choice,) = {group.choice.backend for group in groups}
    assert choice == "gloo"
    assert all("not connected within 0.3 s" in group.choice.reason for group in groups)
    drop(groups)
    del made


def test_survivors_vote_only_when_a_slow_group_is_ready(
    store: StoreServer, made: list[DeviceCollective]
) -> None:
    del made
    config = WorkerConfig(trainer_id="t1", worker_id="w0", node="n", script="s.py")
    commit = commit_of(store, 1, "w0", "w1")
    forming = FormingGroups(Control(config, None), GPU[0])
    assert not forming.is_slow(commit)  # nothing is forming
    forming.hear(commit)
    assert forming.is_slow(commit)  # the other member is not there
    peer = FormingGroups(Control(replace(config, worker_id="w1"), None), GPU[1])
    peer.hear(commit)
    wait_for(lambda: not forming.is_slow(commit), what="the group is there")
    groups = [one.take(commit, never) for one in (forming, peer)]
    assert all(isinstance(group, Group) for group in groups)
    drop([group for group in groups if isinstance(group, Group)])
    without = FormingGroups(Control(config, None), NO_GPU)
    without.hear(commit_of(store, 2, "w0", "w1"))
    assert not without.is_slow(commit_of(store, 2, "w0", "w1"))  # sockets: soon enough
    without.forget(before=(3, 0))
