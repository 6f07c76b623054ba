"""What one user's verbs have the daemon write within a day is bounded; others notice nothing."""

from __future__ import annotations

import json
import logging
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bftrainer.api.service import Peer
from bftrainer.api.volume import (
    HOUR_S,
    MB,
    STANDING_SHARE,
    Volume,
    change_bytes,
    decided_bytes,
    standing_bytes,
    submission_bytes,
    written_bytes,
)
from bftrainer.daemon.daemon import Daemon
from bftrainer.daemon.metrics import MetricsRegistry
from bftrainer.daemon.service import DaemonService
from bftrainer.daemon.volume_file import VOLUME_NAME, VolumeFile
from bftrainer.fleet.trainers.trainers import TrainerBook
from bftrainer.fleet.wire.router import RefusedMessages
from bftrainer.ground.protocol import Report as Said
from bftrainer.ground.protocol import Reported
from bftrainer.journal import Journal
from bftrainer.journal.backlog import EntryDraft
from bftrainer.model.canonical import encode
from bftrainer.model.decision import Settings
from bftrainer.model.errors import BftError
from bftrainer.model.study import TrialTag
from bftrainer.model.trainer import (
    TrainerChange,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
    as_decided,
)
from bftrainer.site.policy.model import SitePolicy
from milp.problem import Curve
from tests.support.incompressible import LETTERS, incompressible

LIMIT_MB = 0.5  # less than a policy may have: a day's worth is quickly written
FULL = "BFT-1086"
RANDOM = random.Random(1)  # noqa: S311 - no secret


def spec_of(**fields: Any) -> TrainerSpec:
    usual = {"user": "ann", "interpreter": "/usr/bin/python3", "checkpoint_dir": "/c"}
    return TrainerSpec(name="n", **{"script": "/s.py", **usual, **fields})


class QuietService(DaemonService):
    """A service whose answers are records."""

    def _view(self, record: TrainerRecord) -> Any:
        return record

    def trainers(self) -> Any:
        return ()


class Site:
    """The part of a daemon that verbs reach, with a clock of its own."""

    def __init__(self, directory: Path, limit_mb: float = LIMIT_MB) -> None:
        self.now_s = 1_000_000.0
        self.path = directory / "journal.db"
        self.journal = self._open()
        policy = SitePolicy()
        self.book = TrainerBook(
            journal=self.journal,
            policy=policy,
            incarnation=self.journal.begin_incarnation(),
            send=lambda _pilot_id, _message: True,
            clock=lambda: self.now_s,
            on_change=lambda: None,
            refusals=RefusedMessages(logging.getLogger("test.volume")),
        )
        self.volume = Volume(lambda: limit_mb, lambda: self.now_s)
        self.book.takes_report = self.volume.takes_report
        state = SimpleNamespace(
            in_force=SimpleNamespace(policy=policy, settings=Settings()),
            plane=SimpleNamespace(trainers=self.book, agents={}),
            metrics=MetricsRegistry(),
            seen=SimpleNamespace(nodes=()),
            volume=self.volume,
        )
        self.service = QuietService(cast("Daemon", SimpleNamespace(state=state)))

    def size_bytes(self) -> int:
        """Return the size of the journal with its log moved into it."""
        self.journal.close()
        size = self.path.stat().st_size
        self.journal._database = self._open()._database
        return size

    def _open(self) -> Journal:
        journal = Journal.open(self.path, clock=lambda: self.now_s)
        assert journal._database is not None
        with journal._database.engine.connect() as connection:
            connection.connection.cursor().execute("PRAGMA synchronous=OFF")  # a test's disk
        return journal

    def submit(self, user: str = "ann", **fields: Any) -> str:
        made: Any = self.service.submit(spec_of(user=user, hold=True, **fields), peer(user))
        return str(made.trainer_id)


def peer(user: str) -> Peer:
    return Peer(uid=4711, user=user, pid=1)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    # The limit per minute is another one (test_allowance.py).
    made.service._allowance._clock = lambda: made.now_s
    yield made
    made.journal.close()


def submits_and_cancels(site: Site) -> None:
    trainer_id = site.submit(environment=incompressible(120_000, RANDOM))
    site.service.cancel(trainer_id, peer("ann"))


def submits_small_ones(site: Site) -> None:
    site.service.cancel(site.submit(), peer("ann"))


def submits_trials(site: Site) -> None:
    environment, first = incompressible(40_000, RANDOM), len(site.book.records)
    trials: Any = site.service.trials.submit(
        [
            spec_of(
                environment=environment, checkpoint_dir=f"/c/{number}", epochs=3,
                trial=TrialTag(study="s", number=number, parameters="{}", most=9),
            )
            for number in range(first, first + 20)
        ],
        peer("ann"),
    )  # fmt: skip
    for trial in trials:
        site.service.cancel(trial.trainer_id, peer("ann"))


def requeues(site: Site) -> None:
    ended = [record for record in site.book.records.values() if record.state.is_final]
    if not ended:
        trainer_id = site.submit(environment=incompressible(120_000, RANDOM))
    else:
        again: Any = site.service.requeue(ended[-1].trainer_id, peer("ann"))
        trainer_id = again.trainer_id
    site.service.cancel(trainer_id, peer("ann"))


def holds_and_releases(site: Site) -> None:
    if not site.book.records:
        site.submit(environment=incompressible(120_000, RANDOM))
    record = site.book.records["t1"]
    change = TrainerChange(is_held=record.held_s is None)
    site.service.change("t1", change, peer("ann"))


def changes_weights(site: Site) -> None:
    if not site.book.records:
        site.submit(environment=incompressible(4_000, RANDOM))
    weight = site.book.records["t1"].spec.weight
    site.service.change("t1", TrainerChange(weight=weight + 1.0), peer("ann"))


def refusal(site: Site, verb: Callable[[Site], object], within_s: float = HOUR_S) -> BftError:
    """Call a verb 120 times a minute until it is refused."""
    end_s = site.now_s + within_s
    while site.now_s < end_s:
        site.now_s += 0.5
        try:
            verb(site)
        except BftError as error:
            return error
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize(
    "verb",
    [
        submits_and_cancels, submits_small_ones, submits_trials, requeues, holds_and_releases,
        changes_weights,
    ],
    ids=lambda verb: verb.__name__,
)  # fmt: skip
def test_an_hour_of_each_verb_writes_no_more_than_a_day_may_and_others_go_on(
    verb: Callable[[Site], None], site: Site
) -> None:
    empty = site.size_bytes()
    error = refusal(site, verb)
    assert error.code == FULL
    assert "Try again in " in error.next_step
    assert site.size_bytes() - empty <= LIMIT_MB * MB
    theirs = site.submit(user="bob", environment=incompressible(120_000, RANDOM))
    assert site.book.records[theirs].spec.user == "bob"
    site.now_s += 23 * HOUR_S
    assert refusal(site, verb, within_s=2.0).code == FULL
    site.now_s += 2 * HOUR_S
    verb(site)


def test_who_has_reached_the_limit_can_still_cancel(site: Site) -> None:
    empty = site.size_bytes()
    large = incompressible(40_000, RANDOM)
    assert refusal(site, lambda site: site.submit(environment=large)).code == FULL
    assert refusal(site, holds_and_releases).code == FULL
    for trainer_id in site.book.records:
        site.service.cancel(trainer_id, peer("ann"))
    assert all(record.state.is_final for record in site.book.records.values())
    assert site.size_bytes() - empty <= LIMIT_MB * MB


def test_a_heavy_day_is_not_hindered(tmp_path: Path) -> None:
    """2,000 trials of a study with 4 kB of variables each, and 10,000 changes."""
    site = Site(tmp_path, SitePolicy().written_mb_per_day_per_user)
    environment = incompressible(4_000, RANDOM)
    spec = spec_of(
        environment=environment, args=("--lr", "0.1"),
        trial=TrialTag(study="s", number=1, parameters='{"lr": 0.1}'),
    )  # fmt: skip
    record: Any = site.service.submit(spec, peer("ann"))
    standing = standing_bytes(200 * [spec])
    site.volume.check_curves("ann", 200 * [spec])
    day_bytes = 2_000 * submission_bytes([spec], standing)
    day_bytes += 10_000 * change_bytes(record, standing)
    site.volume.check("ann", day_bytes)
    site.journal.close()


def reports(site: Site, number: int) -> None:
    said = Reported(generation=0, reports=(Said(value=0.1, step=number, epoch=0, samples=number),))
    trainer = site.book.trainers["t1"]
    site.book._on_reported(trainer, said)


def test_reports_without_end_are_written_within_their_share_and_none_is_lost(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, limit_mb := 4.0)
    site.submit()
    empty = site.size_bytes()
    for number in range(1, 300):  # one in 2 s
        site.now_s += 2.0
        reports(site, number)
    written = len(list(site.journal.entries("reported")))
    assert 0 < written < 299
    assert site.size_bytes() - empty <= limit_mb * MB / 24
    site.book.write_reports()  # the daemon ends
    assert len(list(site.journal.entries("reported"))) == written + 1
    site.now_s += HOUR_S
    reports(site, 1_000)
    assert len(list(site.journal.entries("reported"))) == written + 2
    [record] = site.journal.trainers()
    assert record.reports == site.book.records["t1"].reports
    site.journal.close()


def test_the_count_outlives_the_daemon(tmp_path: Path) -> None:
    now_s = 5_000_000.0
    file = tmp_path / VOLUME_NAME
    before = Volume(lambda: 1, lambda: now_s)
    kept = VolumeFile(before, file)
    before.add("ann", 900_000)
    kept.look(now_s)
    after = Volume(lambda: 1, lambda: now_s + 1.0)
    VolumeFile(after, file)
    assert after.used_bytes("ann") == 900_000
    with pytest.raises(BftError, match=FULL):
        after.check("ann", 200_000)
    after.check("ann", 100_000)
    after.check("bob", 200_000)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"a": 1}', '{"a": {"b": 1}}', '{"a": {"1": 1e999}}', "{" * 9999, "\xff"],
)
def test_a_damaged_count_begins_anew(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / VOLUME_NAME
    file.write_text(text, encoding="latin-1")
    volume = Volume(lambda: 1, lambda: 0.0)
    VolumeFile(volume, file)
    assert volume.used_bytes("a") == 0
    assert "counts anew" in caplog.text


def test_a_clock_that_was_wrong_forgets_nothing_and_bars_nobody_for_ever() -> None:
    now_s = 1_000_000.0
    volume = Volume(lambda: 1, lambda: now_s)
    now_s += 365 * 86_400.0
    volume.add("ann", MB)
    now_s -= 365 * 86_400.0
    with pytest.raises(BftError, match=FULL):
        volume.check("ann", 1)
    assert json.loads(json.dumps(volume.plain()))["ann"]
    now_s += 26 * HOUR_S
    volume.check("ann", 1)


def test_a_verb_that_is_larger_than_the_limit_says_so() -> None:
    volume = Volume(lambda: 1, lambda: 0.0)
    with pytest.raises(BftError, match="at once"):
        volume.check("ann", MB + 1)


def test_no_trainer_is_underrated() -> None:
    points, draw = tuple(range(1, 1001)), RANDOM.random
    curve = Curve(sizes=points, samples_per_s=tuple(point + draw() for point in points))
    other = Curve(sizes=points, samples_per_s=tuple(point + draw() for point in points))
    path = "/" + "".join(RANDOM.choices(LETTERS, k=4_000))
    trial = TrialTag(study="s" * 20, number=7, parameters=json.dumps({"a": '"\\' * 400}))
    for spec in (
        spec_of(),
        spec_of(trial=trial, args=("é" * 100,)),
        spec_of(environment=incompressible(8_000, RANDOM), preamble="module load cuda\n" * 300),
        spec_of(curve=curve, environment=(("A", "\U0001f600" * 900),)),
        spec_of(curve=curve, utility=other, script=path, constraint="é" * 2_000),
    ):
        record = TrainerRecord(
            trainer_id="t1234", spec=spec, state=TrainerState.QUEUED, submitted_s=1e9 / 3
        )
        n_bytes = 4 / 3 * len(zlib.compress(encode(as_decided(record))))
        assert n_bytes < decided_bytes(spec)
        draft = EntryDraft.of("changed", {}, [record])
        assert draft.n_chars < written_bytes(record)
        once = sum(map(len, draft.texts.values()))
        assert once + 3 * draft.n_chars < submission_bytes([spec])


def test_curves_that_each_decision_would_hold_are_bounded_as_well(site: Site) -> None:
    points = tuple(range(1, 1001))
    curve = Curve(sizes=points, samples_per_s=tuple(map(float, points)))
    assert decided_bytes(spec_of(curve=curve)) > STANDING_SHARE * LIMIT_MB * MB
    usual = [spec_of(curve=Curve(sizes=(1, 8), samples_per_s=(1.0, 6.0)))]
    site.volume.check_curves("ann", 5_000 * usual)
    with pytest.raises(BftError, match="fewer points") as caught:
        site.submit(curve=curve)
    assert caught.value.code == FULL
    site.submit()
