"""The book of trainers: what members report becomes one consistent record."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.trainers.trainers import TrainerBook
from bftrainer.fleet.wire.messages import DaemonMessage, KillWorker, TellWorker, WorkerReport
from bftrainer.fleet.wire.router import RefusedMessages
from bftrainer.ground import protocol
from bftrainer.ground.protocol import Commit, Member
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import Divergence, TrainerRecord, TrainerState
from bftrainer.model.views import TrainerView
from bftrainer.site.policy.model import SitePolicy
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.generations import offer
from tests.support.journals import journal_at


class Site:
    """A book with its journal; remembers the last commit it sent."""

    def __init__(
        self,
        directory: Path,
        journal: Journal,
        *,
        max_failures: int | None = None,
        runtime: str = "torch",
    ) -> None:
        self.now_s, self.changes = 100.0, 0  # ``now_s``: somebody may set it
        self.steady_s = 100.0
        self.commit: Commit | None = None
        self.sent: list[tuple[str, DaemonMessage]] = []
        self.refusals = RefusedMessages(logging.getLogger("test.book"))
        self.journal = journal
        self.book = TrainerBook(
            journal=journal,
            policy=SitePolicy(),
            incarnation=journal.begin_incarnation(),
            send=self._send,
            clock=lambda: self.now_s,
            on_change=self._changed,
            steady=lambda: self.steady_s,
            refusals=self.refusals,
        )
        if not self.book.records:
            spec = trainer_spec(directory / "t", SLOW, n_max=4)
            self.book.submit(replace(spec, max_failures=max_failures, runtime=runtime))
        (self.trainer_id,) = self.book.records

    def _send(self, pilot_id: str, message: DaemonMessage, /) -> bool:
        self.sent.append((pilot_id, message))
        if isinstance(message, TellWorker):
            body = protocol.from_body(message.body)
            self.commit = body if isinstance(body, Commit) else self.commit
        return True

    def _changed(self) -> None:
        self.changes += 1

    @property
    def machine(self) -> GenerationMachine:
        return self.book.trainers[self.trainer_id].machine

    def lose_worker(self, node: str) -> None:
        """A worker on this node fails, once it may have been started again."""
        self.now_s += 3.0
        self.steady_s += 3.0  # the back-off is longer only after four failures in a row
        self.book.tick()
        workers = self.book.trainers[self.trainer_id].machine.crew.workers.values()
        (worker,) = [w for w in workers if w.node == node and w.is_alive]
        self.book.on_exit(worker.pilot_id, worker.worker_id, 1, "")

    def enter(self, step: int = 10) -> None:
        """Let everybody of the last commit enter."""
        commit = self.form()
        for member in commit.members:
            self.say(member.worker_id, _entered(member, commit, step))

    def target(self, *nodes: str) -> None:
        self.book.set_targets({self.trainer_id: [offer(n) for n in nodes]})

    def say(self, worker_id: str, message: protocol.Message) -> None:
        pilot_id = self.book.trainers[self.trainer_id].machine.crew.workers[worker_id].pilot_id
        self.book.on_body(pilot_id, worker_id, protocol.to_body(message))

    def form(self) -> Commit:
        """Make everybody warm and ready; nobody has entered yet."""
        machine = self.book.trainers[self.trainer_id].machine
        for worker_id in list(machine.crew.workers):
            self.say(worker_id, protocol.Warm(warm_up_s=1.0))
        assert machine.forming is not None
        generation = machine.forming.generation
        for worker_id in machine.forming.roster:
            self.say(worker_id, protocol.Ready(generation=generation, attempt=1, store_port=4000))
        assert self.commit is not None
        return self.commit


def _entered(member: Member, commit: Commit, step: int = 10) -> protocol.Entered:
    return protocol.Entered(
        generation=commit.generation,
        attempt=1,
        rank=member.rank,
        size=len(commit.members),
        step=step,
        epoch=0,
        samples=step,
        pause_s=0.0,
        transfer_s=0.0,
    )


def _reported(commit: Commit, member: Member, trainer_id: str, step: int) -> WorkerReport:
    warm = protocol.Warm(warm_up_s=1.0)
    return WorkerReport(
        worker_id=member.worker_id,
        trainer_id=trainer_id,
        pid=1,
        commit=protocol.to_body(commit),
        latest=[protocol.to_body(warm), protocol.to_body(_entered(member, commit, step=step))],
    )


def _progress(generation: int, step: int) -> protocol.Progress:
    return protocol.Progress(
        generation=generation, step=step, epoch=0, samples=step, step_s=0.1, samples_per_s=10.0
    )


journal = journal_at(100.0)


def test_generation_and_size_change_together(tmp_path: Path, journal: Journal) -> None:
    site = Site(tmp_path, journal)
    site.target("n1")
    first = site.form()
    site.say(first.members[0].worker_id, _entered(first.members[0], first))
    site.target("n1", "n2")
    second = site.form()
    quick, slow = second.members
    site.say(quick.worker_id, _entered(quick, second))
    site.say(quick.worker_id, _progress(second.generation, 12))  # before the other entered
    progress = site.book.records[site.trainer_id].progress
    assert (progress.generation, progress.size, progress.step) == (first.generation, 1, 12)
    site.say(slow.worker_id, _entered(slow, second, step=12))
    progress = site.book.records[site.trainer_id].progress
    assert (progress.generation, progress.size) == (second.generation, 2)


def test_a_member_that_enters_after_the_end_does_not_bring_it_back(
    tmp_path: Path, journal: Journal
) -> None:
    site, ended = Site(tmp_path, journal, runtime="command"), list[TrainerRecord]()
    site.book.on_ended = ended.append
    site.target("n1", "n2")
    commit = site.form()
    first, slow = commit.members
    site.say(first.worker_id, _entered(first, commit))
    done = protocol.Finished(generation=commit.generation, step=11, epoch=1, samples=11)
    site.say(first.worker_id, done)
    site.book.on_exit(site.machine.crew.workers[first.worker_id].pilot_id, first.worker_id, 0, "")
    site.say(slow.worker_id, _entered(slow, commit))
    assert site.book.records[site.trainer_id].state is TrainerState.FINISHED
    assert [record.state for record in ended] == [TrainerState.FINISHED]


def test_what_agents_announced_is_adopted_into_the_journal(
    tmp_path: Path, journal: Journal
) -> None:
    site = Site(tmp_path, journal)
    site.target("n1", "n2")
    commit = site.form()
    for member in commit.members:
        site.say(member.worker_id, _entered(member, commit))
    survivor = commit.members[1]
    alone = protocol.Commit(
        generation=commit.generation + 1,
        attempt=1,
        token="x",  # noqa: S106 - of the test
        members=(survivor,),
        abandon=True,
        origin="p-n2",
    )
    heir = Site(tmp_path, journal)
    heir.book.reports.keep("p-n2", [_reported(alone, survivor, site.trainer_id, step=40)])
    heir.book.adopt_all({"p-n2": offer("n2")})
    record = heir.book.records[site.trainer_id]
    progress = record.progress
    assert (progress.generation, progress.size, progress.step) == (alone.generation, 1, 40)
    assert record.last_generation == alone.generation
    entry = journal.latest("regrouped")
    assert entry is not None
    what = entry.payload["what"]
    assert (what["size_before"], what["size"], what["by"]) == (2, 1, "p-n2")
    assert "while no daemon" in what["reason"]


@pytest.mark.parametrize(("had", "runtime"), [((), "torch"), (("n1",), "torch"), ((), "command")])
def test_a_journal_that_ends_before_a_generation_was_complete_is_caught_up_with(
    tmp_path: Path, journal: Journal, had: tuple[str, ...], runtime: str
) -> None:
    """Killed then, or a copy of then: failed before, such a trainer stayed queued with size 0."""
    site = Site(tmp_path, journal, runtime=runtime)
    if had:
        site.target(*had)
        site.enter()
    site.target("n1", "n2")
    commit = site.form()  # announced in the journal; nobody's word of having entered came
    assert journal.latest("generation") is not None
    heir = Site(tmp_path, journal)
    before = heir.book.records[site.trainer_id]
    assert (before.progress.size, before.state) == (
        len(had), TrainerState.RUNNING if had else TrainerState.QUEUED
    )  # fmt: skip
    for member in commit.members:
        report = _reported(commit, member, site.trainer_id, step=40)
        heir.book.reports.keep(f"p-{member.node}", [report])
    heir.book.adopt_all({f"p-{n}": offer(n) for n in ("n1", "n2")})
    for record in (heir.book.records[site.trainer_id], *journal.trainers()):
        assert record.state is TrainerState.RUNNING
        progress = record.progress
        assert (progress.generation, progress.size, progress.step) == (commit.generation, 2, 40)
        assert (record.started_s, record.rescales) == (100.0, len(had))
    entry = journal.latest("regrouped")
    assert entry is not None
    assert (entry.payload["what"]["size_before"], entry.payload["what"]["by"]) == (len(had), "")
    heir.target("n1", "n2")
    assert heir.machine.forming is None  # what is right is not touched
    again = Site(tmp_path, journal)  # another daemon finds nothing to catch up with
    assert again.book.records[site.trainer_id].progress.size == 2


def test_nobody_left_is_parked(tmp_path: Path, journal: Journal) -> None:
    site = Site(tmp_path, journal)
    site.target("n1")
    commit = site.form()
    site.say(commit.members[0].worker_id, _entered(commit.members[0], commit))
    heir = Site(tmp_path, journal)
    heir.book.adopt_all({})
    record = heir.book.records[site.trainer_id]
    assert (record.state, record.progress.size) == (TrainerState.PARKED, 0)


def _site(tmp_path: Path, journal: Journal, *, max_failures: int | None = None) -> Site:
    site = Site(tmp_path, journal, max_failures=max_failures)
    site.target("n1", "n2")
    site.enter()
    return site


def test_a_node_where_workers_fail_while_others_train_is_told_to_decisions(
    tmp_path: Path, journal: Journal
) -> None:
    site = _site(tmp_path, journal)
    site.lose_worker("n2")
    site.enter()  # n1 goes on alone
    assert not site.book.quarantine.cooling(site.now_s)
    site.lose_worker("n2")  # before it could join
    first = next(iter(site.book.trainers[site.trainer_id].machine.crew.members))
    site.say(first, _progress(site.book.records[site.trainer_id].progress.generation, 30))
    (cooling,) = site.book.quarantine.cooling(site.now_s).items()
    assert cooling[0] == "n2"
    assert cooling[1].trainer_id == site.trainer_id
    before = site.changes
    site.book.tick()
    assert site.changes == before + 1
    site.now_s = cooling[1].until_s
    site.book.tick()  # it ends by itself, and decisions are asked again
    assert site.changes == before + 2


def test_a_lost_agent_is_no_failure(tmp_path: Path, journal: Journal) -> None:
    site = _site(tmp_path, journal, max_failures=1)
    site.book.on_agent_lost("p-n2")
    record = site.book.records[site.trainer_id]
    assert (record.failures, record.state) == (0, TrainerState.RUNNING)


def test_a_worker_that_its_agent_does_not_know_is_lost_and_no_failure(
    tmp_path: Path, journal: Journal
) -> None:
    site = _site(tmp_path, journal, max_failures=1)
    (lost,) = [w for w in site.machine.crew.workers.values() if w.node == "n2"]
    site.book.reconcile("p-n2", [])
    record = site.book.records[site.trainer_id]
    assert (record.failures, record.state) == (0, TrainerState.RUNNING)
    assert not lost.is_alive
    # The order to start it may have crossed the agent's greeting.
    assert ("p-n2", KillWorker(worker_id=lost.worker_id)) in site.sent
    assert site.machine.trouble.is_broken
    site.book.reconcile("p-n1", [])  # with nobody there the node gets a fresh worker
    assert site.book.records[site.trainer_id].failures == 0


def _agents_die(site: Site, *nodes: str, how: str = "FAILED") -> None:
    for node in nodes:
        site.book.on_agent_lost(f"p-{node}")
    for node in nodes:
        site.book.on_agent_failed(f"p-{node}", how)


def test_agents_that_die_again_and_again_are_the_trainers_failures_but_for_the_first(
    tmp_path: Path, journal: Journal
) -> None:
    site = _site(tmp_path, journal)
    for number in range(6):
        _agents_die(site, "n1", "n2", how="OUT_OF_MEMORY")  # at once: one
        record = site.book.records[site.trainer_id]
        assert (record.failures, record.failing.losses) == (number, number + 1)
        if number < 5:
            assert not record.state.is_final
            site.steady_s += 60.0  # longer than any back-off
            site.target("n1", "n2")
            site.enter(step=10)
    assert record.state is TrainerState.FAILED
    assert record.reason.startswith("BFT-1310: The agent of its node was killed")
    assert "which says OUT_OF_MEMORY. That was failure 5 in a row" in record.reason
    failed = [entry.payload["what"]["node"] for entry in journal.entries("worker-failed")]
    assert len(failed) == 5


def test_before_any_training_two_more_nodes_are_enough(tmp_path: Path, journal: Journal) -> None:
    site = Site(tmp_path, journal)
    for node in ("n1", "n2", "n3"):
        assert not site.book.records[site.trainer_id].state.is_final
        site.target(node)
        _agents_die(site, node)
        site.steady_s += 60.0
    reason = site.book.records[site.trainer_id].reason
    assert "It failed the same way on n2 and n3, before any training." in reason


def test_an_agents_death_after_net_progress_is_a_loss_again(
    tmp_path: Path, journal: Journal
) -> None:
    site = _site(tmp_path, journal)
    for number in range(1, 5):
        _agents_die(site, "n1", "n2")
        site.target("n1", "n2")
        site.enter(step=10 * number)
        generation = site.book.records[site.trainer_id].progress.generation
        site.say(site.machine.crew.members[0], _progress(generation, 10 * number + 5))
    assert site.book.records[site.trainer_id].failures == 0


def test_the_others_of_a_trainer_that_go_on_meanwhile_show_that_it_is_well(
    tmp_path: Path, journal: Journal
) -> None:
    site = _site(tmp_path, journal)
    for step in (20, 30, 40):
        site.book.on_agent_lost("p-n2")
        site.enter(step=step)
        generation = site.book.records[site.trainer_id].progress.generation
        site.say(site.machine.crew.members[0], _progress(generation, step + 5))
        site.book.on_agent_failed("p-n2", "FAILED")  # the batch system took its time to say so
        site.target("n1", "n2")
        site.enter(step=step + 5)
    record = site.book.records[site.trainer_id]
    assert (record.failures, record.failing.losses) == (0, 0)


def test_failures_in_all_end_a_trainer_that_says_so(tmp_path: Path, journal: Journal) -> None:
    site = _site(tmp_path, journal, max_failures=2)
    site.lose_worker("n2")
    site.enter(step=20)
    assert site.book.records[site.trainer_id].state is TrainerState.RUNNING
    site.say(
        next(iter(site.book.trainers[site.trainer_id].machine.crew.members)),
        _progress(site.book.records[site.trainer_id].progress.generation, 30),
    )  # a step between: no failures in a row
    site.lose_worker("n2")
    record = site.book.records[site.trainer_id]
    assert record.state is TrainerState.FAILED
    assert "failure 2 of at most 2 (--max-failures)" in record.reason


def test_workers_that_fail_together_are_one_failure(tmp_path: Path, journal: Journal) -> None:
    site = _site(tmp_path, journal, max_failures=2)
    machine = site.book.trainers[site.trainer_id].machine
    for worker_id in machine.crew.members:
        site.book.on_exit(machine.crew.workers[worker_id].pilot_id, worker_id, 1, "")
    record = site.book.records[site.trainer_id]
    assert (record.failures, record.state.is_final) == (1, False)


def test_a_loss_that_diverged_is_kept_until_the_training_begins_before_it(
    tmp_path: Path, journal: Journal
) -> None:
    site = Site(tmp_path, journal)
    site.target("n1", "n2")
    site.enter(step=10)
    assert site.commit is not None
    first, second = (member.worker_id for member in site.commit.members)
    site.say(second, protocol.Diverged(step=14, cause="BFT-1435: of the second."))
    site.say(first, protocol.Diverged(step=15, cause="BFT-1435: of the first."))
    kept = Divergence(step=14, cause="BFT-1435: of the second.")
    assert site.book.records[site.trainer_id].diverged == kept
    assert [r.diverged for r in journal.trainers()] == [kept], "a daemon that comes after knows it"
    assert len(list(journal.entries("diverged"))) == 1

    site.target("n1")
    site.enter(step=16)
    assert site.book.records[site.trainer_id].diverged == kept
    site.target("n1", "n3")
    site.enter(step=13)  # from an earlier checkpoint
    assert site.book.records[site.trainer_id].diverged is None


def test_remarks_are_kept_of_each_kind_while_they_are_true(
    tmp_path: Path, journal: Journal
) -> None:
    def kept() -> list[str]:
        return [remark.cause for remark in site.book.records[site.trainer_id].remarks]

    def told() -> tuple[str, ...]:
        return site.book.records[site.trainer_id].remark_sentences

    site = Site(tmp_path, journal)
    site.target("n1", "n2")
    site.enter(step=10)
    assert site.commit is not None
    first, second = (member.worker_id for member in site.commit.members)
    unlike = protocol.Remarked(kind="unlike", step=10, generation=1, cause="of generation 1.")
    site.say(first, unlike)
    adopted = protocol.Remarked(kind="adopted", step=14, cause="of the training.")
    site.say(first, adopted)
    site.say(second, replace(adopted, step=20, cause="of a new rank 0."))
    site.say(second, replace(unlike, cause="again."))
    for made_up in range(site.commit.generation + 1, 20):
        site.say(second, replace(unlike, generation=made_up, cause=f"of generation {made_up}."))
    assert kept() == ["of generation 1.", "of the training."]
    assert told() == ("of generation 1.", "of the training.")
    [record] = journal.trainers()
    assert [remark.step for remark in record.remarks] == [10, 14], "a daemon after it knows them"
    assert len(list(journal.entries("remarked"))) == 2

    site.target("n1")
    site.enter(step=16)
    assert kept() == ["of the training."]
    site.say(first, replace(unlike, generation=2, cause="of generation 2."))
    assert told() == ("of the training.", "of generation 2.")
    site.target("n1", "n3")
    site.enter(step=13)  # from an earlier checkpoint
    assert kept() == []


def test_a_parked_trainer_has_the_step_of_its_checkpoint(tmp_path: Path, journal: Journal) -> None:
    site = Site(tmp_path, journal)
    site.target("n1")
    site.enter(step=10)
    assert site.commit is not None
    [worker_id] = [member.worker_id for member in site.commit.members]
    record = site.book.records[site.trainer_id]
    assert record.saved_step == 10, "it began from a checkpoint"
    site.say(worker_id, protocol.Saved(generation=1, step=14, samples=14, path="/c", wall_s=0.1))
    progress = protocol.Progress(
        generation=site.commit.generation,
        step=19,
        epoch=0,
        samples=19,
        step_s=1.0,
        samples_per_s=1.0,
    )
    site.say(worker_id, progress)
    assert _shown(site) == 19
    site.book.on_exit(site.machine.crew.workers[worker_id].pilot_id, worker_id, -9, "")
    site.target()
    record = site.book.records[site.trainer_id]
    assert (record.state, record.progress.step) == (TrainerState.PARKED, 19)
    assert _shown(site) == 14
    assert [r.saved_step for r in journal.trainers()] == [14], "a daemon that comes after knows it"


def test_how_a_training_goes_on_is_remarked_before_it_enters_and_stays(
    tmp_path: Path, journal: Journal
) -> None:
    site = Site(tmp_path, journal)
    site.target("n1")
    (worker_id,) = site.machine.crew.workers
    site.say(worker_id, protocol.Remarked(kind="continued", step=10, cause="With lr 0.1."))
    site.enter(step=10)
    site.target("n1", "n2")
    site.enter(step=16)
    assert site.book.records[site.trainer_id].remark_sentences == ("With lr 0.1.",)
    assert [r.remark_sentences for r in journal.trainers()] == [("With lr 0.1.",)]


def _shown(site: Site) -> int:
    record = site.book.records[site.trainer_id]
    view = TrainerView(record=record, planned_nodes=(), requested_nodes=(), observed_nodes=())
    return view.step


def test_a_tick_reads_clocks_as_often_however_many_trainers_wait(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times a second a daemon looks at all of them, and a clock is a call of the kernel."""
    site, readings, counts = Site(tmp_path, journal), list[float](), list[int]()

    def read() -> float:
        readings.append(site.now_s)
        return site.now_s

    for name in ("_clock", "_steady"):
        monkeypatch.setattr(site.book, name, read)
    for n_trainers in (10, 40):
        while len(site.book.trainers) < n_trainers:
            directory = tmp_path / str(len(site.book.trainers))
            site.book.submit(trainer_spec(directory, SLOW, n_max=4))
        readings.clear()
        site.book.tick()
        counts.append(len(readings))
    assert 0 < counts[0] == counts[1]
