"""One generation's process groups: connected while the script trains, and aborted.

The torch back end blocks in ways nothing can interrupt (connecting to a dead member, a
collective with a hung one). So whatever may hang runs in a side thread or is waited for in
slices, and is abandoned when a newer ``Commit`` arrives; the next group has fresh sockets, a
fresh key in a fresh store, and fresh buffers. Used by ``membership``, ``buckets`` and
``transfer``.

``FormingGroups`` starts to form a group when the control thread receives a ``Commit``;
``membership`` takes it at the switch, when it is usually connected. A group that is no longer
wanted is dropped when it is complete, because nothing can interrupt it.

Gloo takes whoever connects to a forming pair for its member, so ``prove_pairs`` demands a proof of
every peer before a group is used. A stranger costs an attempt.

The members publish their offers of back ends in the generation's store. If all can use NCCL, each
connects and probes it, and the generation uses it only if all succeeded; otherwise it trains with
gloo. No member decides alone.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store

from bftrainer.elastic.network import device
from bftrainer.elastic.network.collective import (
    GROUP_TIMEOUT_S,
    LEFT_BEHIND,
    AbandonableCall,
    Broken,
    Collective,
    settle,
)
from bftrainer.elastic.network.device import DeviceCollective
from bftrainer.elastic.process.control import Control, Key, key_of
from bftrainer.elastic.process.side_threads import start_aside
from bftrainer.elastic.process.store import StoreClient
from bftrainer.elastic.script import torch_compat
from bftrainer.ground import backend_choice
from bftrainer.ground.backend_choice import GLOO, NCCL, BackendChoice, BackendOffer
from bftrainer.ground.protocol import Commit, place_in

__all__ = ["LEFT_BEHIND", "AbandonableCall", "Broken", "settle"]

log = logging.getLogger("bftrainer.elastic")
NONCE_BYTES = 17  # 16 in the release before samples were compared, which so is told apart
# Which devices a process sees: of NVIDIA, AMD, Intel, Huawei and Intel's Gaudi.
VISIBLE = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("ZE_AFFINITY_MASK", "ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES"),
)
PROOF_S = 10.0  # generous: after ours, all pairs of the others connect within milliseconds
NONCE_S, ADDRESS_S = 0.5, 0.05  # one wait for a member's nonce, one for that of an old release


def offer_of(
    wanted: str, parameters: Sequence[torch.Tensor], *, is_bitwise: bool = False
) -> BackendOffer:
    """Return the offer of a worker with this model and the trainer's ``backend``.

    Raises:
        ElasticError: BFT-1414 when a back end is demanded that this worker cannot use.
    """
    if wanted == GLOO:
        return BackendOffer(wanted=wanted)
    name = backend_choice.for_devices(wanted)
    if why_not := _obstacle(name, parameters, is_bitwise=is_bitwise):
        if backend_choice.is_demanded(wanted):
            raise backend_choice.refused(wanted, why_not)
        return BackendOffer(wanted=wanted, why_not=why_not)
    place = parameters[0].device
    version = str(torch.__version__)
    if name == NCCL:
        version = ".".join(map(str, torch.cuda.nccl.version()))
    return BackendOffer(wanted=wanted, device=_name_of(place), place=str(place), version=version)


def _obstacle(name: str, parameters: Sequence[torch.Tensor], *, is_bitwise: bool) -> str:
    devices = {p.device for p in parameters}
    kinds = {d.type for d in devices}
    if kinds == {"cpu"}:
        return "the model is not on a GPU"
    if not kinds.issubset(backend_choice.DEVICES[name]) or len(devices) > 1:
        return f"the model is on {' and '.join(sorted(map(str, devices)))}"
    if is_bitwise:
        return "the bitwise mode adds gradients in host memory"
    if not torch.distributed.is_backend_available(name):
        return f"this torch has no {name.upper()}"
    if name == NCCL and not torch_compat.aborts_nccl():
        return "NCCL cannot be aborted by a torch before 2.6"
    return ""


def _name_of(device: torch.device) -> str:
    uuid = None
    if device.type == "cuda":
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid:  # to NCCL, one GPU under two host names is two; this variable sets the host's name
        return f"{uuid} {os.environ.get('NCCL_HOSTID', '')}".rstrip()
    # Workers of one node may each see one GPU only, always with index 0.
    visible = ":".join(os.environ.get(variable, "") for variable in VISIBLE)
    return f"{os.uname().nodename}:{visible}:{device.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The generation's store, and this member's place in the generation."""

    commit: Commit
    rank: int
    size: int

    @property
    def prefix(self) -> str:
        """Beginning of all keys of this generation and attempt."""
        return f"{self.commit.generation}.{self.commit.attempt}.{self.commit.token}"

    def connect(self) -> StoreClient:
        """Return a new connection, which a blocking wait on another one cannot delay."""
        commit = self.commit
        return StoreClient(commit.store_host, commit.store_port, commit.token, GROUP_TIMEOUT_S)

    def gather(self) -> tuple[StoreClient, list[bytes]]:
        """Wait until all members are here; return a connection, and a fresh nonce of each by rank.

        No member opens its port before, so a stranger has little time to connect to it first. The
        list is empty if a member is of the release before proofs: such a member publishes its
        address without a nonce.

        Raises:
            RuntimeError: the store is gone, or a member never came.
        """
        client, nonces = self.connect(), list[bytes]()
        until_s = time.monotonic() + GROUP_TIMEOUT_S
        client.set(self.key("here", self.rank), secrets.token_bytes(NONCE_BYTES))
        while (rank := len(nonces)) < self.size:
            client, nonce = self._look(client, self.key("here", rank), NONCE_S)
            if nonce is not None:
                nonces.append(nonce)
                continue
            client, address = self._look(client, self.old_key(rank), ADDRESS_S)
            if address is not None:
                nonces.clear()
                break
            if time.monotonic() > until_s:
                client.close()
                raise RuntimeError(f"rank {rank} did not come to the store")
        client.limit(GROUP_TIMEOUT_S)
        return client, nonces

    def _look(
        self, client: StoreClient, key: str, patience_s: float
    ) -> tuple[StoreClient, bytes | None]:
        """Return a connection to go on with and a value, None if it was not set in time."""
        client.limit(patience_s)
        try:
            return client, client.get(key)
        except RuntimeError:  # the connection is closed: a late answer would be taken for another
            return self.connect(), None

    def old_key(self, rank: int) -> str:
        """Return the key at which gloo publishes an address for a group without proofs."""
        return f"{self.prefix}/0/{rank}"

    def key(self, what: str, rank: int) -> str:
        """Return the key of a value that a member publishes."""
        return f"{self.prefix}/{what}/{rank}"


class Attempt:
    """This member's attempt to connect a back end; its one outcome is published to all."""

    def __init__(
        self, meeting: Meeting, make: Callable[[], DeviceCollective], limit_s: float
    ) -> None:
        self._meeting, self._make = meeting, make
        self._lock = threading.Lock()
        self._is_decided = False
        self.collective: DeviceCollective | None = None
        late = f"not connected within {limit_s:g} s"
        self._timer = threading.Timer(limit_s, self._decide, [late])
        self._timer.daemon = True
        self._timer.start()
        start_aside(self._run, name="bft-device")

    def _run(self) -> None:
        try:
            collective = self._make()
        except Exception as problem:  # noqa: BLE001 - whatever failed, gloo is used
            self._decide(str(problem).partition("\n")[0][:200] or type(problem).__name__)
            return
        if not self._decide("", collective):
            collective.close()  # too late

    def _decide(self, reason: str | None, collective: DeviceCollective | None = None) -> bool:
        with self._lock:
            if self._is_decided:
                return False
            self._is_decided = True
            self.collective = collective
        self._timer.cancel()
        if reason is not None:
            self._tell(reason)
        return True

    def _tell(self, reason: str) -> None:
        meeting = self._meeting
        ranks, text = [meeting.rank], ""
        if reason:
            # A failure is published for every rank, so that no member waits for the others.
            ranks, text = [*range(meeting.size), meeting.rank], f"rank {meeting.rank}: {reason}"
        try:
            store = meeting.connect()
            for rank in ranks:
                store.set(meeting.key("outcome", rank), text)
            store.close()
        except RuntimeError as problem:  # members that wait for us fail at the store, too
            log.warning("cannot report to the other members: %s", problem)

    def give_up(self) -> None:
        """Close the connection, now or when it is made."""
        self._decide(None)  # the member that failed has published the reason
        collective, self.collective = self.collective, None
        if collective is not None:
            collective.close()


def choice_of(meeting: Meeting, store: StoreClient, offer: BackendOffer) -> BackendChoice:
    """Publish this member's offer and return the choice that follows from all offers.

    Raises:
        ElasticError: BFT-1414, see ``backend_choice``.
        RuntimeError: the store is gone, or a member never came.
    """
    if offer.wanted == GLOO:
        return BackendChoice()  # all members have the same setting
    store.set(meeting.key("offer", meeting.rank), json.dumps(asdict(offer)))
    if not offer.device and not backend_choice.is_demanded(offer.wanted):
        return BackendChoice()  # one member without a GPU decides it
    offers: list[BackendOffer] = []
    for rank in range(meeting.size):
        text = store.get(meeting.key("offer", rank))
        offers.append(BackendOffer(**json.loads(text)))
    return backend_choice.choose(offers)


def attempt_all(attempt: Attempt, meeting: Meeting, choice: BackendChoice) -> BackendChoice:
    """Wait for the outcome of all members' attempts; return what the generation uses.

    Raises:
        RuntimeError: the store is gone, or a member never reported its outcome.
    """
    store = meeting.connect()
    try:
        for rank in range(meeting.size):
            reason = store.get(meeting.key("outcome", rank)).decode()
            if reason:
                attempt.give_up()
                failure = f"{choice.backend.upper()} failed: {reason}"
                log.warning("this generation trains with gloo: %s", failure)
                return replace(choice, backend=GLOO, reason=failure)
    except BaseException:
        attempt.give_up()
        raise
    finally:
        store.close()
    return choice


class TorchStore(Store):
    """Implements what a process group uses: ``set``, ``get`` and ``wait``."""

    def __init__(self, client: StoreClient) -> None:
        super().__init__()
        self._client = client

    def set(self, key: str, value: bytes | str) -> None:
        """Set a value."""
        self._client.set(key, value)

    def get(self, key: str) -> bytes:
        """Return a value; blocks until a member has set it."""
        return self._client.get(key)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        if timeout is not None:
            self._client.limit(timeout.total_seconds())
        for key in keys:
            self._client.get(key)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def new_process_group(store: Store, rank: int, size: int, address: str) -> Any:
    """Make the gloo process group that every generation has."""
    timeout = timedelta(seconds=GROUP_TIMEOUT_S)
    return torch_compat.new_gloo(store, rank, size, address=address, timeout=timeout)


def prove_pairs(pg: Any, rank: int, nonces: Sequence[bytes], token: str) -> None:
    """Demand of every peer a proof that it knows the generation's token, and give ours.

    It is an HMAC of both nonces and the direction. All pairs at once, before anything else is
    sent over a pair, as messages of gloo's own, because it hands out no sockets.

    Raises:
        RuntimeError: a peer is a stranger (BFT-1344), hung up, or was silent for ``PROOF_S``.
    """

    def proof(by: int, to: int) -> bytes:
        text = b"%d to %d %b %b" % (by, to, nonces[by], nonces[to])
        return hmac.digest(token.encode(), text, "sha256")

    peers = [peer for peer in range(len(nonces)) if peer != rank]
    until_s = time.monotonic() + PROOF_S
    our_proofs: list[torch.Tensor] = []
    for peer in peers:
        word = bytearray(proof(rank, peer))
        our_proofs.append(torch.frombuffer(word, dtype=torch.uint8))
    their_proofs = list(map(torch.empty_like, our_proofs))
    works = [pg.recv([word], peer, 0) for peer, word in zip(peers, their_proofs, strict=True)]
    works += [pg.send([word], peer, 0) for peer, word in zip(peers, our_proofs, strict=True)]
    for work in works:  # a wait that is too long closes all pairs
        work.wait(timedelta(seconds=max(0.001, until_s - time.monotonic())))
    for peer, answer in zip(peers, their_proofs, strict=True):
        if not hmac.compare_digest(bytes(answer.tolist()), proof(peer, rank)):
            raise RuntimeError(
                f"BFT-1344: a stranger connected to the port of rank {rank} in place of rank {peer}"
            )


class Group:
    """The process groups of one generation and attempt.

    ``control`` carries what is in host memory: votes, member status, and with gloo everything
    else. ``data`` carries device tensors, if the members agreed on NCCL or the like. ``copies`` are
    the workers with the same state: all, or where models are sharded one of each node, None for one
    node.
    """

    def __init__(
        self,
        pg: Any,
        store: Any,
        rank: int,
        size: int,
        data: DeviceCollective | None = None,
        choice: BackendChoice = BackendChoice(),  # noqa: B008 - frozen
    ) -> None:
        self.control = Collective(pg)
        self.data, self.choice, self.store = data, choice, store
        self.rank, self.size = rank, size
        self.copies: Group | None = self
        self.compares = False  # all members can

    @property
    def pg(self) -> Any:
        """Gloo's process group."""
        return self.control.pg

    def carrier_of(self, tensor: torch.Tensor) -> Collective:
        """Return the back end that carries this tensor."""
        if self.data is not None and device.is_on_device(tensor):
            return self.data
        return self.control

    def await_device(self) -> None:
        """Wait until nothing of this process runs on the group's device, if it has one."""
        if self.copies is not None and self.copies.data is not None:
            device.await_kernels(self.copies.data.device)

    def drop(self) -> None:
        """Close the sockets without waiting: joining their threads takes up to 80 ms."""
        self.control.close()
        if self.data is not None:
            self.data.close()
        if self.store is not None:
            self.store.close()
        self.store = None
        if self.copies not in (None, self):
            self.copies.drop()

    def is_gone(self, within_s: float) -> bool:
        """Return whether its threads have ended, so that no collective writes any more."""
        if not self.control.is_gone(within_s):
            return False
        if self.data is not None and not self.data.is_gone(within_s):
            return False
        if self.copies is None or self.copies is self:
            return True
        return self.copies.is_gone(within_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """Connects this member to others of its generation."""

    meeting: Meeting
    store: TorchStore
    nonces: Sequence[bytes]  # of all members; none: one of them has no proofs
    address: str
    alike: Sequence[int]  # ranks with the same state

    def connect(self, ranks: Sequence[int], name: str = "") -> Any:
        """Return a gloo process group of these members, each pair proven."""
        meeting = self.meeting
        place = f"{meeting.prefix}{name}"
        if self.nonces:
            place = f"{meeting.prefix}/proven{name}"
        rank = ranks.index(meeting.rank)
        pg = new_process_group(PrefixStore(place, self.store), rank, len(ranks), self.address)
        try:
            if self.nonces:
                prove_pairs(pg, rank, [self.nonces[r] for r in ranks], meeting.commit.token)
        except BaseException:
            Collective(pg).close()  # at once: members behind a stranger wait for us
            raise
        return pg

    def connect_device(self, name: str, place: str) -> DeviceCollective:
        """Return a communicator, by this back end, of the members with the same state."""
        ranks = self.alike
        store = PrefixStore(f"{self.meeting.prefix}/{name}{ranks[0] or ''}", self.store)
        rank, size = ranks.index(self.meeting.rank), len(ranks)
        collective = device.new_collective(name, store, rank, size, torch.device(place))
        try:
            device.probe(collective, size)
        except BaseException:
            collective.close()
            raise
        return collective

    def copies(self, data: DeviceCollective | None, choice: BackendChoice) -> Group | None:
        """Return the group of the members with the same state; None: there is no other."""
        ranks = self.alike
        if len(ranks) == 1:
            return None
        pg = self.connect(ranks, f"/{ranks[0]}")
        return Group(pg, None, ranks.index(self.meeting.rank), len(ranks), data, choice)


def build(
    commit: Commit,
    rank: int,
    address: str,
    offer: BackendOffer = BackendOffer(),  # noqa: B008 - frozen
    per_node: int = 1,
    *,
    is_sharded: bool = False,
) -> Group:
    """Connect to all members of a commit; blocks, so ``FormingGroups`` calls it in a thread.

    ``is_sharded``: over the ``per_node`` workers of each node.

    Raises:
        ElasticError: BFT-1414 when a back end is demanded that cannot be used.
        RuntimeError: a member, or the store, cannot be reached.
    """
    size = len(commit.members) * per_node
    step = per_node if is_sharded else 1  # each part of a model is on one worker of each node
    meeting = Meeting(commit=commit, rank=rank, size=size)
    client, nonces = meeting.gather()
    store = TorchStore(client)
    alike = range(rank % step, size, step)
    connector = Connector(meeting=meeting, store=store, nonces=nonces, address=address, alike=alike)
    data: DeviceCollective | None = None
    try:
        pg = connector.connect(range(size))
        choice = BackendChoice()
        if len(alike) > 1:
            choice = choice_of(meeting, client, offer)
        if choice.backend != GLOO:
            limit_s = device.HURRIED_S if commit.abandon else device.PROBE_S
            connect = partial(connector.connect_device, choice.backend, offer.place)
            attempt = Attempt(meeting, connect, limit_s)
            choice = attempt_all(attempt, meeting, choice)
            data = attempt.collective
        group = Group(pg, store, rank, size, None if is_sharded else data, choice)
        lengths = set(map(len, nonces))
        group.compares = lengths == {NONCE_BYTES}
        if is_sharded:
            group.copies = connector.copies(data, choice)
    except BaseException:
        if data is not None:
            data.close()
        store.close()
        raise
    return group


def rehearse(address: str) -> None:
    """Form a group of one, to warm up the code that a first group needs."""
    pg = new_process_group(torch_compat.HashStore(), 0, 1, address)
    pg.allreduce([torch.zeros(1)]).wait()


class FormingGroups:
    """Forming groups by commit; shared by the control thread and the training loop."""

    def __init__(
        self,
        control: Control,
        offer: BackendOffer = BackendOffer(),  # noqa: B008 - frozen
        *,
        is_sharded: bool = False,
    ) -> None:
        self._control, self._offer, self._is_sharded = control, offer, is_sharded
        self._lock = threading.Lock()
        self._tasks: dict[Key, AbandonableCall[Group]] = {}
        self._begun: set[Key] = set()  # including those taken: a second group confuses peers
        control.on_commit = self.hear

    def hear(self, commit: Commit) -> None:
        """Begin to connect to the other members of a commit, once.

        The training loop may see a commit and take its group before the control thread,
        which received it, calls this.
        """
        config = self._control.config
        me = place_in(commit, config)
        if me is None or me.size == 1 or self._control.is_over:
            return
        rank, address, per_node = me.rank, me.address, config.local_size
        with self._lock:
            if key_of(commit) not in self._begun:
                self._begun.add(key_of(commit))
                connect = partial(build, is_sharded=self._is_sharded)
                self._tasks[key_of(commit)] = AbandonableCall(
                    self._control, lambda: connect(commit, rank, address, self._offer, per_node)
                )

    def is_slow(self, commit: Commit) -> bool:
        """Return whether the group of ``commit`` is still forming, and may take seconds.

        Members may wait while sockets connect, but not for a communicator of GPUs.
        """
        with self._lock:
            task = self._tasks.get(key_of(commit))
        return bool(self._offer.device) and task is not None and not task.is_done

    def take(self, commit: Commit, abandoned: Callable[[], bool]) -> Group | Broken:
        """Wait for the group of ``commit``, which has several members."""
        self.hear(commit)
        with self._lock:
            task = self._tasks.pop(key_of(commit))
        outcome = task.wait(abandoned)
        if isinstance(outcome, Broken):
            task.forgo(Group.drop)
        return outcome

    def forget(self, before: Key) -> None:
        """Drop the groups of earlier commits, which will not be entered."""
        with self._lock:
            stale = [self._tasks.pop(key) for key in sorted(self._tasks) if key < before]
            self._begun = {key for key in self._begun if key >= before}
        for task in stale:
            task.forgo(Group.drop)
