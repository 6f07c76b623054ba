"""The agent's holder over real sockets: who may bring and fetch, and what is kept."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bftrainer.elastic import checkpoint, fence, replica_transfer
from bftrainer.elastic.fence import Fence
from bftrainer.elastic.protocol import Recall
from bftrainer.elastic.replica_transfer import Asker, CopyError, CopyFacts
from bftrainer.elastic.resuming import find
from tests.support.waiting import wait_for
from trainers.agent.replica_store import CopyHolder, free_bytes

KEY, OTHER = "a" * 64, "b" * 64
LAYOUT = 5


class Site:
    """A holder with room for a few copies of trainer t1."""

    def __init__(self) -> None:
        self.limit_bytes = 1 << 20
        self.holder = CopyHolder(limit_bytes=lambda: self.limit_bytes)
        self.address = ("127.0.0.1", self.holder.start("127.0.0.1"))
        self.holder.hold("t1", KEY, 3)

    def parts(self, value: float) -> list[bytes | memoryview]:
        header = {"layout": LAYOUT, "structure": None}
        return list(checkpoint.parts_of(header, [torch.full((1000,), value)]))

    def put(
        self, step: int, generation: int = 3, *, key: str = KEY, damage: bool = False
    ) -> CopyFacts:
        parts = self.parts(float(step))
        facts = CopyFacts(
            trainer_id="t1", incarnation=1, generation=generation, token="t",  # noqa: S106
            step=step, samples=8 * step, size_bytes=sum(map(len, parts)),
            digest=bytes(parts[-1]).hex(),
        )  # fmt: skip
        if damage:
            parts[-2] = bytes(len(parts[-2]))
        replica_transfer.put(self.address, key, facts, parts)
        return facts

    def steps(self) -> list[int]:
        return [facts.step for facts, _ in self.holder.held()]

    def recall(self, key: str = KEY) -> Recall:
        return Recall(holder="p2", node="n2", host=self.address[0], port=self.address[1], key=key)

    def found(self, generation: int = 9, key: str = KEY, trainer_id: str = "t1") -> float | None:
        asker = Asker(trainer_id=trainer_id, generation=generation)
        found = find(None, self.recall(key), asker, LAYOUT)
        return None if found is None else float(found.tensors[0][0])


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.holder.close()


def test_the_newest_copy_comes_back_bit_for_bit(site: Site) -> None:
    assert site.found() is None
    for step in (1, 2, 3):
        site.put(step, generation=9)
    assert site.steps() == [3]
    assert site.found(generation=10) == 3.0


def test_older_generations_are_refused_and_what_is_held_stays(site: Site) -> None:
    with pytest.raises(CopyError, match="later generation"):
        site.put(50, generation=2)
    site.put(10, generation=5)
    with pytest.raises(CopyError, match="later generation"):
        site.put(60, generation=4)
    site.put(4, generation=6)  # a later generation may have gone back to a checkpoint
    assert site.steps() == [4]


def test_who_asks_for_a_copy_fences_off_those_before(site: Site) -> None:
    site.put(10, generation=5)
    assert site.found(generation=7) == 10.0
    with pytest.raises(CopyError, match="later generation"):
        site.put(11, generation=5)  # a ghost, cut off from the daemon but not from us
    assert site.found(generation=8) == 10.0


def test_a_copy_of_a_generation_that_is_not_over_is_not_taken(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.put(10, generation=5)
    assert site.found(generation=5) is None
    assert "generation 5, which is not over" in caplog.text


def test_nobody_without_the_key_brings_or_fetches(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CopyError, match="holds no copies for this trainer"):
        site.put(1, key=OTHER)
    site.put(2)
    assert site.found(key=OTHER) is None
    assert site.found(trainer_id="t2") is None
    assert site.steps() == [2]
    assert KEY not in caplog.text


def test_a_holder_that_cannot_prove_itself_is_not_believed(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        impostor.settimeout(10)
        site.address = impostor.getsockname()[:2]

        def answer() -> None:
            connection, _ = impostor.accept()
            with connection, connection.makefile("rb") as file:
                replica_transfer.send_line(connection, {"nonce": "0"})
                replica_transfer.read_line(file)
                replica_transfer.send_line(connection, {"answer": {"go": True}, "proof": "0"})

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(CopyError, match="cannot prove"):
            site.put(1)
        thread.join()


def test_what_is_too_large_is_refused_with_the_limit(site: Site) -> None:
    site.put(1)
    site.limit_bytes = 5000
    with pytest.raises(CopyError, match="exceed the agent's limit"):
        site.put(2)
    assert site.steps() == [1]
    assert free_bytes() > 0


def test_a_copy_that_breaks_off_leaves_the_one_before(site: Site) -> None:
    site.put(1)
    parts = site.parts(2.0)
    facts = CopyFacts(
        trainer_id="t1", incarnation=1, generation=3, token="t", step=2, samples=2,  # noqa: S106
        size_bytes=sum(map(len, parts)), digest="",
    )  # fmt: skip
    with pytest.raises(CopyError):
        replica_transfer.put(
            site.address, KEY, replace(facts, size_bytes=facts.size_bytes + 1), parts[:1]
        )
    assert site.steps() == [1]
    wait_for(lambda: site.found(generation=4) == 1.0, what="it can be fetched")


def test_bytes_changed_on_the_way_are_found_out(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.put(1, damage=True)
    assert site.found() is None
    assert "checksum" in caplog.text
    parts = site.parts(2.0)
    forged = CopyFacts(
        trainer_id="t1", incarnation=1, generation=3, token="t", step=2, samples=2,  # noqa: S106
        size_bytes=sum(map(len, parts)), digest=hashlib.sha256(b"another").hexdigest(),
    )  # fmt: skip
    site.holder.drop("t1")
    site.holder.hold("t1", KEY, 3)
    replica_transfer.put(site.address, KEY, forged, parts)
    assert site.found() is None
    assert "not the copy that was given to its holder" in caplog.text


def test_strangers_that_say_nothing_sensible_are_answered_and_left(site: Site) -> None:
    for said in (b"GET / HTTP/1.0\r\n\r\n", b"{}\n", b"\x00" * 5000, b'{"verb": "put"}\n'):
        with socket.create_connection(site.address) as stranger:
            stranger.settimeout(10)
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
    site.put(1)
    assert site.steps() == [1]


def test_a_copy_is_put_on_disk_as_a_checkpoint(site: Site, tmp_path: Path) -> None:
    assert site.holder.settle("t1", tmp_path) == "no copy is held"
    site.put(7, generation=4)
    assert site.holder.settle("t1", tmp_path) == ""
    [path] = checkpoint.newest_first(tmp_path)
    assert path == fence.path_for(tmp_path, 7, 4)
    assert float(checkpoint.read(path)[1][0][0]) == 7.0
    assert site.steps() == [7]


def test_a_copy_does_not_get_to_disk_after_a_later_generation(site: Site, tmp_path: Path) -> None:
    later = Fence(incarnation=1, generation=5, token="u", trainer_id="t1")  # noqa: S106
    assert fence.claim(tmp_path, later)
    site.put(7, generation=4)
    assert "later generation" in site.holder.settle("t1", tmp_path)
    assert checkpoint.newest_first(tmp_path) == []
