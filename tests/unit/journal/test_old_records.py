"""Records that an earlier release wrote, or that somebody crafted for one, after an upgrade.

Whatever is in them, nothing runs as another user than the one who submitted, a name is never part
of a statement, and the daemon starts (HTCONDOR-2025-0002, CVE-2023-49934).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.fleet.trainers.trainers import TrainerBook
from bftrainer.journal.journal import Journal
from bftrainer.journal.projection import PilotRecord, PilotState, pilot_of, trainer_of
from bftrainer.model.canonical import to_plain
from bftrainer.model.decision import Claim, Memory, Plan
from bftrainer.model.trainer import TrainerRecord
from bftrainer.site.policy.model import SitePolicy
from tests.support.claiming import claiming_of
from tests.support.generations import offer
from tests.support.journals import journal_at
from tests.support.snapshots import T0, record
from tests.unit.fleet.test_users_apart import book_of, in_loop

NAMES = (
    "'; DROP TABLE trainers; --",
    '" OR 1=1 --',
    "100%s %(x)s {0} :p ?",
    "a\0b",
    "\ud800",
    "ada\nroot",
    "-ada",
    "../root",
    "root",
    "0",
    "%",
    "_",
    "",
    "x" * 70_000,
)


journal = journal_at(T0, begins=True)


def _of(user: str) -> TrainerRecord:
    plain = record("t1")
    return replace(plain, spec=replace(plain.spec, user=user))


class Asked:
    """A batch system that remembers as whom it was asked to submit."""

    def __init__(self) -> None:
        self.users: list[str] = []

    def launch_pilot(self, request: PilotRequest) -> str:
        self.users.append(request.user)
        return "7"


# ---- whose --------------------------------------------------------------------------------


@pytest.mark.parametrize("user", NAMES)
@in_loop
async def test_a_pilot_is_asked_for_as_the_user_of_the_record_or_not_at_all(
    tmp_path: Path, journal: Journal, user: str
) -> None:
    """Failed before for "": such a pilot was the daemon's own. The helper judges the others."""
    journal.append("note", {}, trainers=[_of(user)])
    system = Asked()
    pilots = book_of(journal, system)
    claiming = claiming_of(pilots, tmp_path)
    claim = Claim(node="n1", time_limit_s=60.0, for_trainer="t1")
    plan = Plan(
        assignment={"n1": "t1"}, claims=(claim,), releases=(), pool=(), not_used={}, reserve=(),
        allocation=None, memory=Memory(),
    )  # fmt: skip
    (known,) = journal.trainers()
    try:
        await claiming.ask(claiming.open(plan, journal.next_pilot_ids(1), {"t1": known}))
    finally:
        claiming.close()
    assert set(system.users) <= {user} - {""}


@pytest.mark.parametrize("user", [7, None, ["ada"], {"type": "X"}, True])
def test_a_pilot_whose_user_cannot_be_read_serves_nobody(journal: Journal, user: Any) -> None:
    """Failed before: it counted as the daemon's own, though it runs as somebody else."""
    plain = to_plain(
        PilotRecord(
            pilot_id="p000001", node="n1", job_id="7", public_key="k", requested_s=T0,
            time_limit_s=60.0, owner="bft", state=PilotState.RUNNING,
        )
    )  # fmt: skip
    read = pilot_of({**plain, "user": user})
    assert (read.node, read.state, read.owner) == ("n1", PilotState.RUNNING, "bft")
    journal.append("note", {}, pilots=[read])
    serves = replace(offer("n1"), user=book_of(journal, Asked()).user_of("p000001"))
    assert not any(serves.serves(whose) for whose in ("bft", "ada", "", "7", "root"))


@pytest.mark.parametrize("lacks", ["script", "submitted_s", "state"])
@pytest.mark.parametrize("user", NAMES)
def test_what_cannot_be_read_of_a_trainer_keeps_its_owner_and_never_runs(
    user: str, lacks: str
) -> None:
    """Passes: an unreadable record has failed, and whoever requeues it owns it."""
    plain = to_plain(_of(user))
    (plain["spec"] if lacks == "script" else plain).pop(lacks)
    read = trainer_of(plain)
    assert read.state.is_final
    assert read.spec.user == user


# ---- names in statements --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_never_part_of_a_statement(tmp_path: Path, name: str) -> None:
    """Passes: all values are bound. Every query that has a name of somebody is asked here."""
    path = tmp_path / "journal.db"
    odd = _of(name)
    odd = replace(odd, spec=replace(odd.spec, name=name, account=name, array_id=name))
    pilot = PilotRecord(
        pilot_id="p000001", node=name, job_id=name, public_key=name, requested_s=T0,
        time_limit_s=60.0, owner=name, user=name, reason=name,
    )  # fmt: skip
    with Journal.open(path, clock=lambda: T0) as journal:
        journal.begin_incarnation()
        journal.append("note", {"name": name}, trainers=[odd, record("t2")], pilots=[pilot])
        journal.append("note", {}, trainers=[odd], pilots=[pilot])  # replaces its row
        journal.checkpoint(T0 - 1.0)
        ended = replace(pilot, state=PilotState.ENDED, ended_s=T0)
        journal.append("note", {}, pilots=[ended])
        assert journal.ended_pilots(5) == (ended,)
    with Journal.open(path, clock=lambda: T0) as journal:
        assert journal.verify() == 5
        assert journal.trainers() == (odd, record("t2"))
        assert journal.pilots() == (ended,)
        entry = journal.latest("note")
        assert entry is not None
        assert entry.pilots == (ended,)


@pytest.mark.parametrize("name", NAMES)
def test_a_daemon_starts_with_such_records(journal: Journal, name: str) -> None:
    """Passes; they wait like any other trainer."""
    spec = replace(
        record("t1").spec, user=name, name=name, script=name, cwd=name, checkpoint_dir=name,
        interpreter=name, environment=((name, name),), preamble=name, account=name, args=(name,),
        constraint=name, gres=name, array_id=name, after=(name,),
    )  # fmt: skip
    journal.append("note", {}, trainers=[replace(record("t1"), spec=spec), record("t2")])
    book = TrainerBook(
        journal=journal,
        policy=SitePolicy(),
        incarnation=journal.begin_incarnation(),
        send=lambda _pilot, _message: True,
        clock=lambda: T0,
        on_change=lambda: None,
    )
    book.set_targets({"t1": [replace(offer("n1"), user="ada")], "t2": [offer("n2")]})
    book.tick()
    assert book.nodes_of("t2")[1] == ("n2",)
    if name != "ada":  # the node's agent runs as ada
        assert book.nodes_of("t1") == ((), ())
