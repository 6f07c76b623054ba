"""A run is what its arguments say: a checkpoint of other ones is refused, or taken as wished."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.elastic.checkpoints.origin import RunOrigin
from bftrainer.elastic.checkpoints.origin_check import CONTINUE
from bftrainer.ground import files
from bftrainer.ground.protocol import Entered, Failed, Remarked
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

SWEEP = SCRIPTS / "sweep.py"
PER_EPOCH = 5  # updates


class Site:
    """A directory in which a script is submitted again and again."""

    def __init__(self, directory: Path, template: TemplateProcess, script: Path = SWEEP) -> None:
        self.directory, self.script, self._template = directory, script, template
        directory.mkdir(exist_ok=True)
        self._generation = 0  # a later one may write where an earlier one did

    def train(self, args: str, *, way: str = "", trial: str = "", **config: Any) -> dict[str, Any]:
        """Train to the end; return the script's result, where it began and the log."""
        variables = {"BFT_TEST_DIR": str(self.directory), "OMP_NUM_THREADS": "1"}
        variables |= {CONTINUE: way} if way else {}
        variables |= {"BFT_STUDY": "s", "BFT_TRIAL": trial} if trial else {}
        pairs = tuple(variables.items())
        with Controller(self.directory, self._template) as c:
            c.generation = self._generation
            (worker,) = c.begin(self.script, args.split(), environment=pairs, **config)
            c.finished()
            self._generation = c.generation
            (first, *_) = c.workers[worker].all(Entered)
            log = c.workers[worker].log.read_text()
            remarks = [said.cause for said in c.workers[worker].all(Remarked)]
        result = json.loads((self.directory / "result.json").read_text())
        return {**result, "from": first.step, "log": log, "remarks": remarks}

    def refused(self, args: str, *, way: str = "") -> Failed:
        """Start it; return how it failed."""
        before = sorted(self.checkpoints())
        variables = {"BFT_TEST_DIR": str(self.directory), "OMP_NUM_THREADS": "1"}
        variables |= {CONTINUE: way} if way else {}
        with Controller(self.directory, self._template) as c:
            c.generation = self._generation
            pairs = tuple(variables.items())
            (worker,) = ids = c.start(self.script, args.split(), environment=pairs)
            c.warm(ids)
            c.commit_only(ids)
            c.until(lambda: c.workers[worker].returncode is not None, "ended")
            (failed,) = c.workers[worker].all(Failed)
        assert sorted(self.checkpoints()) == before  # nothing is lost
        return failed

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        return files.newest_first(self.directory / "checkpoints")


@pytest.fixture
def site(tmp_path: Path, template: TemplateProcess) -> Site:
    return Site(tmp_path / "site", template)


def test_a_checkpoint_of_another_learning_rate_is_refused_and_stays(site: Site) -> None:
    site.train("--lr 0.1 --epochs 1")
    failed = site.refused("--lr 0.01 --epochs 2")
    assert failed.code == "BFT-1450"
    assert "(step 5 of t1)" in failed.cause
    assert "--lr 0.01 (it has --lr 0.1)" in failed.cause
    for way in ("--fresh", "-J NAME", "--continue"):
        assert way in failed.next_step


def test_the_checkpoint_says_what_it_is_of(site: Site) -> None:
    site.train("--lr 0.1 --epochs 1", cwd=str(SCRIPTS))
    origin = RunOrigin.read(files.peek(site.checkpoints()[0]))
    assert origin is not None
    assert (origin.trainer, origin.script) == ("t1", "sweep.py")
    assert origin.args == ("--lr", "0.1", "--epochs", "1")
    assert origin.versions.keys() >= {"torch", "python", "bftrainer"}


def test_the_same_again_and_a_greater_length_go_on(site: Site) -> None:
    site.train("--lr 0.1 --epochs 1")
    again = site.train("--lr 0.1 --epochs 1")
    assert (again["from"], again["steps"]) == (PER_EPOCH, PER_EPOCH)
    assert "goes on from" not in again["log"]
    more = site.train("--lr 0.1 --epochs 2")
    assert (more["from"], more["steps"]) == (PER_EPOCH, 2 * PER_EPOCH)
    assert "goes on from step 5 of t1: --epochs 2 (it has --epochs 1)" in more["log"]
    by_option = site.train("--lr 0.1 --epochs 2", epochs=3)
    assert (by_option["from"], by_option["steps"]) == (2 * PER_EPOCH, 3 * PER_EPOCH)
    assert "goes on from" not in by_option["log"]


@pytest.mark.long
def test_an_edited_script_and_another_order_are_told(
    tmp_path: Path, template: TemplateProcess
) -> None:
    script = tmp_path / "mine.py"
    shutil.copy(SWEEP, script)
    site = Site(tmp_path / "site", template, script)
    site.train("--lr 0.1 --epochs 1")
    with script.open("a") as file:
        file.write("# a remark\n")
    edited = site.train("--epochs 1 --lr 0.1", epochs=2)
    assert edited["from"] == PER_EPOCH
    assert "the same arguments in another order, the script was edited" in edited["log"]


@pytest.mark.long
def test_one_of_an_earlier_release_goes_on_with_a_notice(site: Site) -> None:
    site.train("--lr 0.1 --epochs 1")
    (newest, *_) = site.checkpoints()
    _forget_origin(newest)
    more = site.train("--lr 0.01 --epochs 2")
    assert more["from"] == PER_EPOCH
    assert more["rates"] == [0.1]
    assert "does not say with which arguments" in more["log"]


def _forget_origin(path: Path) -> None:
    """Write a checkpoint as earlier releases did."""
    header, tensors = checkpoint.read(path)
    for name in ("origin", "base_rates", "schedules", "tensors"):
        header.pop(name)
    path.write_bytes(b"".join(bytes(part) for part in checkpoint.parts_of(header, tensors)))


def test_with_continue_rates_and_options_are_the_script_s(site: Site) -> None:
    site.train("--lr 0.1 --epochs 1")
    more = site.train("--lr 0.02 --decay 0.5 --epochs 3", way="arguments")
    assert (more["from"], more["steps"]) == (PER_EPOCH, 3 * PER_EPOCH)
    assert more["rates"] == pytest.approx([0.02, 0.02])
    assert more["decay"] == 0.5
    changes = "lr 0.02 (it had 0.1), weight_decay 0.5 (it had 0)"
    assert changes in more["log"]
    began = f"It went on from step {PER_EPOCH} with other arguments"
    said = [f"{began}: group 0 of the optimizer has {changes}."]
    assert more["remarks"] == said, "status has the values, too"
    again = site.train("--lr 0.02 --decay 0.5 --epochs 3", way="arguments", epochs=4)
    assert again["rates"] == pytest.approx([0.02])
    assert "goes on from" not in again["log"]
    assert again["remarks"] == []


@pytest.mark.long
def test_with_continue_a_schedule_goes_on_at_the_new_rate(site: Site) -> None:
    site.train("--lr 0.1 --schedule step --epochs 2")
    more = site.train("--lr 0.02 --schedule step --epochs 3", way="arguments")
    assert more["rates"] == pytest.approx([0.02 * 0.25])


@pytest.mark.long
def test_a_schedule_of_another_horizon_needs_a_word(site: Site) -> None:
    site.train("--schedule cosine --horizon 4 --epochs 2")
    other = "--schedule cosine --horizon 8 --epochs 3"
    failed = site.refused(other, way="arguments")
    assert failed.code == "BFT-1451"
    assert "T_max 8 (it has 4)" in failed.cause
    assert "--continue=schedule-old" in failed.next_step
    kept = shutil.copytree(site.directory, site.directory.with_name("other"))
    old = site.train(other, way="schedule-old")
    assert old["rates"] == pytest.approx([0.05])  # in the middle of 4
    site.directory = kept
    new = site.train(other, way="schedule-new")
    assert new["rates"] == pytest.approx([0.1 * 0.853553], rel=1e-5)  # a quarter of 8


@pytest.mark.long
def test_a_schedule_of_another_class_cannot_stay(site: Site) -> None:
    site.train("--schedule cosine --epochs 2")
    failed = site.refused("--schedule step --epochs 3", way="schedule-old")
    assert failed.code == "BFT-1451"
    assert "schedule-old" not in failed.next_step
    new = site.train("--schedule step --epochs 3", way="schedule-new")
    assert new["rates"] == pytest.approx([0.1 * 0.25])
    assert "StepLR" in new["log"]


@pytest.mark.long
def test_a_trial_is_not_asked(site: Site) -> None:
    site.train("--lr 0.1 --epochs 1", trial="1")
    assert site.train("--lr 0.01 --epochs 2", trial="2")["rates"] == pytest.approx([0.01])
    assert site.refused("--lr 0.5 --epochs 3").code == "BFT-1450"  # which is none any more
