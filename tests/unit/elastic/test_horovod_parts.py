"""The parts of a Horovod worker that need no Horovod: rendezvous, sockets, counting, order."""

from __future__ import annotations

import dataclasses
import http.client
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from bftrainer.elastic.horovod import world as sockets
from bftrainer.elastic.horovod.session import Session, install
from bftrainer.elastic.horovod.world import Front, HorovodContext, SingleStore
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.store import StoreClient, StoreServer
from bftrainer.fleet.runtimes.base import Resize, load_runtime, resize_of, worker_config
from bftrainer.fleet.runtimes.horovod import BOOTSTRAP
from bftrainer.ground import reception
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import WorkerConfig, from_body
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import (
    CheckpointContract,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from tests.support.strangers import Strangers
from tests.support.waiting import wait_for

CONFIG = WorkerConfig(trainer_id="t1", worker_id="w1", node="n", script="s")
TOKEN = "0123456789abcdef"  # noqa: S105 - of the generation, no secret here


def ask(front: Front, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """One request as Horovod's client makes it: its port comes behind our token."""
    host, _, token = front.address.partition("/")
    with closing(http.client.HTTPConnection(host, timeout=20)) as connection:
        connection.request(method, f"/{token}:0/{path}", body=body)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture
def fronts() -> Iterator[list[Front]]:
    """Two members of a generation with a common store."""
    server = StoreServer("127.0.0.1")
    server.expect(TOKEN)
    clients = [StoreClient("127.0.0.1", server.port, TOKEN, 20.0) for _ in range(2)]
    made = [
        Front(client, prefix="7.1.x", place=f"{rank},2,0,1,{rank},2")
        for rank, client in enumerate(clients)
    ]
    yield made
    for front in made:
        front.close()
    for client in clients:
        client.close()
    server.close()


def test_what_one_member_sets_the_other_gets_as_soon_as_it_is_there(fronts: list[Front]) -> None:
    got: list[tuple[int, bytes]] = []
    asking = threading.Thread(target=lambda: got.append(ask(fronts[1], "GET", "global/0")))
    asking.start()
    value = bytes(range(256))
    assert ask(fronts[0], "PUT", "global/0", value) == (200, b"")
    asking.join(20)
    assert got == [(200, value)]
    assert ask(fronts[0], "DELETE", "global/0") == (200, b"")


def test_each_member_is_told_its_own_place(fronts: list[Front]) -> None:
    assert ask(fronts[0], "GET", "rank_and_size/w1:0") == (200, b"0,2,0,1,0,2")
    assert ask(fronts[1], "GET", "rank_and_size/w2:0") == (200, b"1,2,0,1,1,2")


def status_of(front: Front, path: str, **headers: str) -> int:
    """What a stranger's request comes to."""
    host = front.address.partition("/")[0]
    with closing(http.client.HTTPConnection(host, timeout=20)) as connection:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status


@pytest.mark.parametrize("word", ["other", "alone", "none", TOKEN])
def test_a_request_without_the_token_is_refused(fronts: list[Front], word: str) -> None:
    """Neither what a context of one was once called nor the generation's token opens it."""
    assert status_of(fronts[0], f"/{word}:0/rank_and_size/w1:0") == 403


@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_a_page_in_a_browser_is_refused_even_with_the_token(
    fronts: list[Front], header: dict[str, str]
) -> None:
    token = fronts[0].address.partition("/")[2]
    path = f"/{token}:0/rank_and_size/w1:0"
    assert status_of(fronts[0], path) == 200
    assert status_of(fronts[0], path, **header) == 403


def test_strangers_keep_no_request_waiting(fronts: list[Front]) -> None:
    """One idle connection once held it for 30 s."""
    with Strangers(lambda: [front.port for front in fronts]).at_work() as strangers:
        wait_for(lambda: strangers.are_there(100), what="strangers of every kind")
        for number in range(20):
            assert ask(fronts[0], "PUT", f"global/{number}", b"value") == (200, b"")
            assert ask(fronts[1], "GET", f"global/{number}") == (200, b"value")
        for front in fronts:
            assert len(front._strangers) <= Front.most_strangers


@pytest.mark.parametrize("text", [b"", b"GET / HT", b"PUT /x:0/y HTTP/1.1\r\nA: b\r\n"])
def test_a_head_that_never_ends_is_given_up(
    fronts: list[Front], monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    """However often a byte comes."""
    monkeypatch.setattr(reception, "PROOF_S", 0.2)
    with socket.create_connection(("127.0.0.1", fronts[0].port), 20) as slow:
        slow.sendall(text)
        slow.settimeout(0.01)

        def is_sent_away() -> bool:
            try:
                slow.sendall(b"x")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_for(is_sent_away, timeout_s=20.0, what="it is closed")


def test_what_is_no_request_does_not_end_the_service(fronts: list[Front]) -> None:
    host, port = fronts[0].address.partition("/")[0].split(":")
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        assert connection.recv(100) == b""
    assert ask(fronts[0], "GET", "rank_and_size/w1:0")[0] == 200


def test_a_member_alone_finds_what_it_set() -> None:
    store = SingleStore()
    store.set("a", "b")
    assert store.get("a") == b"b"
    with pytest.raises(RuntimeError, match="never set"):
        store.get("c")


# ---- sockets ---------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), 20)
        far, _ = server.accept()
    far.settimeout(20)
    with near, far:
        yield near, far


def test_connections_are_found_and_cut_on_both_sides(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    found = sockets.connections()
    assert {near.fileno(), far.fileno()} <= set(found)
    sockets.cut({near.fileno(): "socket:[0]"})  # another one by now
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    sockets.cut({near.fileno(): found[near.fileno()]})
    assert far.recv(1) == b""


def test_only_the_context_of_an_earlier_commit_is_cut(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    # The training thread may have formed the next context when the control thread comes to
    # cut the last one.
    near, far = pair
    world = HorovodContext(
        Control(WorkerConfig(trainer_id="t1", worker_id="w1", node="n", script="s"), None)
    )
    world._key = (2, 1)
    world._sockets = {near.fileno(): sockets.connections()[near.fileno()]}
    world.cut(before=(2, 1))
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    world.cut(before=(3, 1))
    assert far.recv(1) == b""


# ---- the order -------------------------------------------------------------------------

SPEC = TrainerSpec(
    name="digits", user="u", script="/s/train.py", args=("--lr", "0.1"), cwd="/s",
    interpreter="/venv/bin/python", n_min=1, n_max=4, checkpoint_dir="/s/ckpt",
)  # fmt: skip


@pytest.mark.parametrize("size", [0, 3])
def test_the_order_runs_our_bootstrap_and_says_how_many_train(size: int) -> None:
    runtime = load_runtime("horovod")
    runtime.check(SPEC)
    record = TrainerRecord(
        trainer_id="t7",
        spec=SPEC,
        state=TrainerState.RUNNING,
        submitted_s=0.0,
        progress=TrainerProgress(size=size),
    )
    told = worker_config(
        record, worker_id="w", node="n1", address="10.0.0.1", incarnation=3, log_path="/l"
    )
    order = runtime.start_message(record, told)
    config = from_body(order.config)
    assert isinstance(config, WorkerConfig)
    assert (order.program, order.interpreter) == ("", "/venv/bin/python")
    assert (config.script, config.args) == (
        str(BOOTSTRAP), (str(size), "/s/train.py", "--lr", "0.1"),
    )  # fmt: skip
    assert BOOTSTRAP.is_file()
    assert resize_of("horovod") is Resize.IN_PLACE


def test_a_contract_about_checkpoints_is_refused() -> None:
    spec = dataclasses.replace(SPEC, contract=CheckpointContract())
    with pytest.raises(UsageError) as caught:
        load_runtime("horovod").check(spec)
    assert caught.value.code == "BFT-1305"


def test_an_interpreter_without_horovod_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_ELASTIC", "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.common", None)
    monkeypatch.setitem(sys.modules, "horovod.common.basics", None)
    with pytest.raises(ElasticError, match=r"build_horovod\.sh") as caught:
        install(Session(Control(CONFIG, None), others=0))
    assert caught.value.code == "BFT-1430"
