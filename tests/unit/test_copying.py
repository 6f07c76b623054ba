"""Who holds a copy, in the cases that have a name."""

from __future__ import annotations

import itertools

from bftrainer.actuate.group import NodeOffer, Tell
from bftrainer.actuate.replica_policy import (
    CompleteCopy,
    CopyMachine,
    CopyStatus,
    Lone,
    Order,
    choose_holder,
)
from bftrainer.elastic import protocol
from bftrainer.wire.messages import DropCopy, HoldCopy, SettleCopy
from tests.support.generations import offer

A, B, C = (offer(n, copy_port=7) for n in ("a", "b", "c"))
LONE = Lone(worker_id="w1", pilot_id="p-a", node="a")
ALONE = CopyStatus(lone=LONE, generation=4)


def machine() -> CopyMachine:
    keys = itertools.count()
    return CopyMachine("t1", "/ck", lambda: f"key{next(keys)}")


def advance(
    m: CopyMachine, standing: CopyStatus, *offers: NodeOffer, now_s: float = 0.0
) -> list[Order | Tell]:
    return m.advance(standing, offers, {}, now_s)


def copied(holder: str, step: int, **changes: object) -> protocol.Copied:
    fields: dict[str, object] = {
        "generation": 4, "step": step, "samples": step, "holder": holder, "size_bytes": 1,
        "hold_s": 0.01, "wall_s": 0.5, "gap_s": 2.5, **changes,
    }  # fmt: skip
    return protocol.Copied(**fields)  # type: ignore[arg-type]  # test values


def kept(out: list[Order | Tell]) -> list[protocol.Message]:
    return [protocol.from_body(o.body) for o in out if isinstance(o, Tell)]


def test_the_one_with_fewest_copies_is_chosen_and_stays() -> None:
    assert choose_holder([A, B, C], "a", {"p-b": 1}, {}) == C
    assert choose_holder([A, B, C], "a", {"p-b": 1}, {}, "p-b") == B
    assert choose_holder([A, B, C], "a", {}, {"p-b": "no room"}) == C
    assert choose_holder([A, offer("b")], "a", {}, {}) is None  # an agent of an earlier release


def test_a_lone_member_and_its_holder_are_told_once() -> None:
    m = machine()
    hold, tell = advance(m, ALONE, A, B)
    assert hold == Order(
        pilot_id="p-b", message=HoldCopy(trainer_id="t1", key="key0", generation=4)
    )
    [keep] = kept([tell])
    assert keep == protocol.KeepCopy(holder="p-b", host="addr-b", port=7, key="key0")
    assert "key0" not in repr(keep)
    assert advance(m, ALONE, A, B) == []


def test_a_holder_that_leaves_is_replaced_and_forgotten() -> None:
    m = machine()
    advance(m, ALONE, A, B, C)
    m.on_copied(copied("p-b", 10), 0.0)
    [_, tell] = advance(m, ALONE, A, C)
    [keep] = kept([tell])
    assert isinstance(keep, protocol.KeepCopy)
    assert keep.holder == "p-c"
    assert m.copies == {}
    assert m.on_copied(copied("p-b", 11), 0.0) == []  # what it still said
    assert m.copies == {}


def test_one_that_refuses_is_left_alone_for_a_while() -> None:
    m = machine()
    advance(m, ALONE, A, B)
    m.on_copied(copied("p-b", 10, refused="no room"), 0.0)
    [keep] = kept(advance(m, ALONE, A, B, now_s=1.0))
    assert keep == protocol.KeepCopy(holder="")
    assert "no room" in m.in_words(1.0)[0]
    assert advance(m, ALONE, A, B, now_s=30.0) == []
    assert kept(advance(m, ALONE, A, B, now_s=61.0))


def test_company_makes_copies_useless() -> None:
    m = machine()
    advance(m, ALONE, A, B)
    m.on_copied(copied("p-b", 10), 0.0)
    together = CopyStatus(has_replicas=True, generation=5)
    assert advance(m, together, A, B) == [Order(pilot_id="p-b", message=DropCopy(trainer_id="t1"))]
    assert advance(m, together, A, B) == []
    assert m.in_words(0.0) == ()


def test_the_next_generation_is_sent_to_the_copy_and_the_copy_to_disk() -> None:
    m = machine()
    advance(m, ALONE, A, B)
    m.on_copied(copied("p-b", 10), 0.0)
    lost = CopyStatus(is_lost=True, generation=4)
    assert advance(m, lost, B) == [
        Order(pilot_id="p-b", message=SettleCopy(trainer_id="t1", directory="/ck"))
    ]
    assert advance(m, lost, B) == []
    [recall] = kept(m.recall("w2", "p-b"))
    assert recall == protocol.Recall(holder="p-b", node="b", host="addr-b", port=7, key="key0")
    assert m.on_resumed(10) == []
    assert m.on_settled("p-b", "") == [Order(pilot_id="p-b", message=DropCopy(trainer_id="t1"))]
    assert m.recall("w3", "p-b") == []


def test_a_copy_that_was_not_gone_on_from_goes() -> None:
    m = machine()
    advance(m, ALONE, A, B)
    m.on_copied(copied("p-b", 10), 0.0)
    assert m.on_resumed(6) == [Order(pilot_id="p-b", message=DropCopy(trainer_id="t1"))]


def test_a_copy_older_than_the_parking_checkpoint_goes() -> None:
    m = machine()
    advance(m, ALONE, A, B)
    m.on_copied(copied("p-b", 10), 0.0)
    parked = CopyStatus(is_lost=True, generation=4, saved_step=12)
    assert advance(m, parked, B) == [Order(pilot_id="p-b", message=DropCopy(trainer_id="t1"))]


def test_an_heir_takes_over_what_agents_hold() -> None:
    m = machine()
    assert m.on_found("p-b", CompleteCopy(generation=4, step=9, taken_s=0.0), 4) == []
    assert (
        m.on_found("p-c", CompleteCopy(generation=3, step=99, taken_s=0.0), 4) != []
    )  # of a left line
    hold, tell = advance(m, ALONE, A, B, C)
    assert isinstance(hold, Order)
    assert hold.pilot_id == "p-b"
    assert kept([tell])


def test_it_says_how_old_the_copy_is_and_why() -> None:
    m = machine()
    advance(m, ALONE, A)
    assert "no other node has an agent of bftrainer" in m.in_words(0.0)[0]
    advance(m, ALONE, A, B)
    assert "on its way" in m.in_words(0.0)[0]
    m.on_copied(copied("p-b", 10), 10.0)
    assert m.in_words(12.0) == ("A copy of its state is in the memory of b, 2.5 s old.",)
    m.on_copied(copied("p-b", 20, hold_s=0.12, gap_s=12.0), 20.0)
    assert "taken every 12.0 s: each stops the training for 120 ms" in m.in_words(21.0)[0]
