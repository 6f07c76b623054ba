"""What a trainer keeps from one life to the next: as the book records it, and in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bftrainer.daemon.explain.lives import VAIN_STARTS, is_vain, kept, vain_sentence
from bftrainer.fleet.trainers import record_updates
from bftrainer.fleet.wire.messages import StartWorker
from bftrainer.ground import protocol
from bftrainer.ground.checkpoint_gap import LIVES
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import Lives, Mark, TrainerRecord, TrainerState, as_decided
from tests.support.journals import journal_at
from tests.support.snapshots import record
from tests.unit.fleet.test_trainer_book import Site


class LivingSite(Site):
    """A book whose trainer loses its only node again and again."""

    @property
    def record(self) -> TrainerRecord:
        return self.book.records[self.trainer_id]

    def live(self, first: int, *steps: int, for_s: float = 10.0) -> None:
        """Start at a step, report others, lose the node."""
        self.start(first, *steps)
        self.now_s += for_s
        self.steady_s += for_s
        self.book.on_agent_lost("p-n1")
        self.book.tick()
        assert self.record.state is TrainerState.PARKED

    def start(self, first: int, *steps: int) -> None:
        self.target("n1")
        self.enter(step=first)
        for step in steps:
            [worker_id] = self.machine.crew.members
            said = protocol.Progress(
                generation=self.machine.numbers.generation,
                step=step, epoch=0, samples=16 * step, step_s=0.1, samples_per_s=160.0,
            )  # fmt: skip
            self.say(worker_id, said)


journal = journal_at(100.0)


def test_lives_that_begin_where_the_last_one_began_are_a_finding(
    tmp_path: Path, journal: Journal
) -> None:
    site = LivingSite(tmp_path, journal)
    site.live(0, 10, 22)
    site.live(2, 24)
    site.live(2, 26)
    assert vain_sentence(site.record, site.now_s) == ""
    site.start(2)
    assert site.record.lives.lost.step == 20 + 22 + 24
    assert vain_sentence(site.record, site.now_s) == (
        "No progress in its last 3 starts: none began beyond step 2. Its nodes stayed for 10 s on"
        " average. Look in its log for why no checkpoint was written."
    )
    book, spec = site.book, site.record.spec
    assert book.steps_lost == {(spec.user, spec.account): site.record.lives.lost.step}
    assert book.lives_lost == 3
    heir = LivingSite(tmp_path, journal)
    assert heir.record.lives == site.record.lives
    assert (heir.book.steps_lost, heir.book.lives_lost) == ({}, 0)  # of its own time
    assert is_vain(heir.record, site.now_s)


def test_what_was_kept_of_all_that_was_trained_is_a_figure(
    tmp_path: Path, journal: Journal
) -> None:
    site = LivingSite(tmp_path, journal)
    assert kept(site.record) == ""
    site.live(0, 50)
    assert kept(site.record) == "100% of 800 samples that it trained"
    site.live(40, 100)
    site.start(95, 100)
    gone = 50 - 40 + 100 - 95
    assert site.record.lives.lost.step == gone
    assert not is_vain(site.record, site.now_s)
    assert site.record.lives.starts == 1


def test_lives_without_any_progress_are_a_finding_for_programs_as_well(
    tmp_path: Path, journal: Journal
) -> None:
    site = LivingSite(tmp_path, journal, runtime="command")
    for _ in range(11):
        site.live(0)
    assert vain_sentence(site.record, site.now_s) == (
        "No progress in its last 11 starts: it reported none. Its nodes stayed for 10 s on average."
        " It needs longer to begin than its nodes stay: have it import and load less."
    )


def test_a_program_tells_where_it_begins_with_its_first_progress(
    tmp_path: Path, journal: Journal
) -> None:
    site = LivingSite(tmp_path, journal, runtime="command")
    site.live(0, 50, 100)
    site.live(0, 60, 80)  # it entered before it had loaded its checkpoint
    site.live(0, 70, 75)
    now = site.record.lives
    assert (now.lost.step, now.furthest.step, now.reached.step, now.starts) == (50, 70, 75, 1)
    for _ in range(VAIN_STARTS):
        site.live(0, 70)
    assert "--checkpoint-interval is" in vain_sentence(site.record, site.now_s)


def test_a_long_life_that_gets_further_ends_the_finding() -> None:
    base = replace(record(), state=TrainerState.RUNNING)
    vain = Lives(starts=5, furthest=Mark(step=2), reached=Mark(step=90), began_s=100.0)
    one = replace(base, lives=vain, progress=replace(base.progress, size=1))
    interval_s = one.spec.checkpoint_interval_s
    assert is_vain(one, 100.0 + interval_s)
    assert not is_vain(one, 100.0 + 3 * interval_s)
    assert is_vain(replace(one, lives=replace(vain, reached=Mark(step=2))), 1e6)
    assert not is_vain(replace(one, state=TrainerState.FINISHED), 100.0)


def test_workers_are_told_how_long_the_last_lives_lasted(tmp_path: Path, journal: Journal) -> None:
    site = LivingSite(tmp_path, journal)
    for n in range(record_updates.KEPT + 2):
        site.live(n, for_s=float(n))
    site.target("n1")
    [*_, order] = [m for _, m in site.sent if isinstance(m, StartWorker)]
    told = dict(order.config["environment"])
    assert told[LIVES] == "2.0 3.0 4.0 5.0 6.0 7.0 8.0 9.0"
    assert as_decided(site.record).lives == Lives()


def test_a_life_that_ends_in_a_checkpoint_is_no_loss() -> None:
    before = Lives(began_s=50.0)
    assert record_updates.ended(before, 70.0, is_saved=True) == before
    assert record_updates.ended(before, 70.0, is_saved=False).lasted_s == (20.0,)


def test_a_first_life_is_left_out_of_the_journal_and_known_to_the_next_daemon(
    tmp_path: Path, journal: Journal
) -> None:
    """The release before would refuse a journal with a field that it does not know."""
    site = LivingSite(tmp_path, journal)
    site.start(0, 40)
    assert site.record.lives.reached.step == 40
    site.book.tick()
    journal.flush()
    (stored,) = journal.trainers()
    assert stored.lives == Lives()
    again = record_updates.read(replace(stored, progress=site.record.progress))
    assert again.lives.reached == site.record.lives.reached
    site.book.on_agent_lost("p-n1")
    site.book.tick()
    site.live(0, 50)
    journal.flush()
    (stored,) = journal.trainers()
    assert stored.lives == site.record.lives != Lives()
