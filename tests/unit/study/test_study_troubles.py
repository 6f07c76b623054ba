"""What a study keeps its hands off, refuses before it begins, and waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.study import StudyView
from bftrainer.study.directory import Events, StudyDirectory, check_unused, write_directory
from bftrainer.study.disk import FullDisk
from bftrainer.study.document import StudyErrors, parse_study
from bftrainer.study.trial_table import MAX_EXCUSED
from bftrainer.study.trials import Start, TrialStage
from tests.unit.study.test_study_parts import DOCUMENT, PARAMETERS, TEXT, known, stored, study, view

GRID = "sampler: grid\nparameters: {n: {type: int, low: 1, high: 1000000000000}}\n"
RULE = "rule: {name: none, trials: 2, most: 1}\n"


def test_a_new_study_takes_no_directory_that_holds_anything(tmp_path: Path) -> None:
    made = study(tmp_path / "own.study")
    (made.path / "trials").mkdir(parents=True)
    with pytest.raises(BftError, match=r"BFT-1639.*'trials'"):
        write_directory(made)
    with pytest.raises(BftError, match=r"BFT-1639.*'trials'"):
        check_unused(made.path)
    (made.path / "trials").rmdir()
    (made.path / ".study.json.1.tmp").touch()  # of one that was killed as it began
    write_directory(made)


def test_a_copied_directory_is_found_out() -> None:
    other = {**PARAMETERS, "lr": 0.2}
    with pytest.raises(BftError, match=r"BFT-1636.*Trial 3 .*copy"):
        known(stored(3, parameters=other), view(3))
    assert known(stored(3, parameters=other, end=TrialStage.COMPLETE), view(3)).number == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GRID + RULE, "more than 10000"),
        ('parameters: {act: ["a\\nb", c]}\n' + RULE, "control character"),
        ('configurations: [{act: "a\\eb"}]\n' + RULE, "control character"),
        (
            "parameters: {a: [1]}\nrule: {name: hyperband, trials: 1000000000000, most: 9}\n",
            "trials is too great",
        ),
        ("configurations: [{a: 1}]\nfailed: ignore\n" + RULE, "ignore needs a sampler"),
    ],
)
def test_documents_that_would_fail_later_are_refused(text: str, said: str) -> None:
    with pytest.raises(StudyErrors, match=said):
        parse_study(text, Path("own.yaml"))


def test_one_pass_of_hyperband_can_have_more_trials() -> None:
    text = TEXT.replace("name: asha, trials: 8", "name: hyperband, trials: 0")
    found = parse_study(text, Path("own.yaml"))
    one_pass = 9 + 5 + 3
    assert found.rule_settings(4)["trials"] == one_pass + 4


def test_events_that_cannot_be_written_stop_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    events = Events(tmp_path / "none" / "events.jsonl", said.append)
    events.happened("pool")
    events.happened("started", "trial 0 starts")
    assert len(said) == 2, said
    assert "cannot be written" in said[0]


def _storage(path: Path) -> Any:
    pytest.importorskip("optuna")
    from bftrainer.study.storage import StudyStorage

    return StudyStorage(path / "optuna.log", "own", DOCUMENT)


def test_trials_of_other_scripts_are_left_alone(tmp_path: Path) -> None:
    ours = _storage(tmp_path)
    theirs = pytest.importorskip("optuna").load_study(study_name="own", storage=ours._storage)
    theirs.enqueue_trial({"lr": 0.5})
    theirs.ask()
    theirs.enqueue_trial({"lr": 0.5})
    assert ours.next_number() == 2
    assert ours.create(Start(budget=1), PARAMETERS) == 2
    assert [one.number for one in ours.trials()] == [2]


def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    ours = _storage(tmp_path)
    full = OSError(28, "No space left on device")
    with (
        mock.patch.object(ours._storage, "create_new_trial", side_effect=full),
        pytest.raises(BftError, match=r"BFT-1636.*No space left"),
    ):
        ours.create(Start(budget=1), PARAMETERS)


class _Loop:
    """A study's loop beside a daemon that a test plays."""

    def __init__(self, path: Path, **document: Any) -> None:
        from bftrainer.study.loop import StudyLoop

        made: StudyDirectory = study(path / "own.study", DOCUMENT.model_copy(update=document))
        write_directory(made)
        self.client, self.said = mock.Mock(), list[str]()
        self.storage = _storage(made.path)
        self.loop = StudyLoop(made, self.client, self.storage, self.said.append)
        self.client.study.side_effect = lambda *_, **__: StudyView(
            study=made.study_id, change=0, incarnation=1, pool_nodes=2, trials=()
        )


def test_it_waits_when_the_policy_has_no_room_for_trainers(tmp_path: Path) -> None:
    one = _Loop(tmp_path)
    one.client.submit_trials.side_effect = UsageError(
        "BFT-1009", "There are 9 trainers already.", "Wait.", exit_code=ExitCode.REFUSED_BY_POLICY
    )
    for _ in range(3):
        assert not one.loop.turn()
    assert [line for line in one.said if "wait to start: There are 9" in line], one.said


def test_it_waits_while_the_daemons_disk_is_full(tmp_path: Path) -> None:
    one = _Loop(tmp_path)
    full = BftError("BFT-2201", "The disk of the journal is full.", "Free space there.")
    with (
        mock.patch.object(one.loop, "turn", side_effect=[full, True]),
        mock.patch.object(one.loop, "summarize"),
    ):
        one.loop.run()
    assert "The disk of the journal is full." in one.said[0]


def test_where_others_take_their_place_failures_end(tmp_path: Path) -> None:
    for mode in ("worst", "ignore"):
        one = _Loop(tmp_path / mode, failed=mode)
        for number in range(6):
            one.storage.create(Start(budget=1), PARAMETERS)
            one.storage.report(number, {1: 0.5} if number == 0 else {})
        failed = [known(stored(n), view(n, state="failed"), retry=0) for n in range(1, 6)]
        first = known(stored(0, end=TrialStage.COMPLETE, values={1: 0.5}))
        for each in failed:
            one.loop._finish(each, "It failed.")
        if mode == "worst":
            one.loop._refuse_hopeless([first, *failed], 8)
            continue
        with pytest.raises(BftError, match="BFT-1629: 5 trials failed"):
            one.loop._refuse_hopeless([first, *failed], 8)


FULL = "BFT-1410: The script raised OSError: [Errno 28] No space left on device. See its log."


def test_failures_of_a_full_disk_do_not_count() -> None:
    full = [view(0, n, state="failed", reason=FULL) for n in range(MAX_EXCUSED)]
    assert known(stored(), *full, retry=0).stage is TrialStage.ACTIVE
    assert known(stored(), *full, retry=0).is_to_retry
    again = view(0, MAX_EXCUSED, state="failed", reason="It failed.")
    assert known(stored(), *full, again, retry=0).stage is TrialStage.FAILED
    assert known(stored(), *full, again, retry=1).is_to_retry


def test_a_trial_that_never_has_room_enough_fails(tmp_path: Path) -> None:
    disk, tries, stopped = FullDisk(tmp_path), [], []
    disk.check([])
    for attempt in range(9):
        tries.append(view(0, attempt, state="failed", reason=FULL))
        one = known(stored(), *tries, retry=1)
        try:
            disk.check([one])
        except BftError as error:
            stopped.append(error.next_step)
            disk = FullDisk(tmp_path)  # the study is run again
            disk.check([one])
        if not one.is_to_retry:
            break
    assert one.stage is TrialStage.FAILED
    assert len(tries) == MAX_EXCUSED + 2
    assert len(stopped) == MAX_EXCUSED
    assert "Free space there" not in stopped[0]


def test_a_new_one_stops_the_study_and_old_ones_do_not(tmp_path: Path) -> None:
    old = known(stored(0), view(0, state="failed", reason=FULL))
    new = known(stored(1), view(1, state="failed", reason=FULL))
    disk = FullDisk(tmp_path)
    disk.check([old])
    disk.check([old])
    with pytest.raises(BftError, match=r"BFT-1636.*trial 1 failed.*No space left"):
        disk.check([old, new])
    FullDisk(tmp_path).check([old, new])
    with pytest.raises(BftError, match=r"BFT-1636.*No such file"):
        FullDisk(tmp_path / "gone").check([old])
