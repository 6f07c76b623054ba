"""Hold, release, update, requeue, dependencies and begin times, on the local batch system."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from bftrainer.api.page.parts import row as page_row
from bftrainer.cli.main import main
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerChange, TrainerSpec, TrainerState
from milp.problem import Curve
from tests.elastic.controller import SCRIPTS
from tests.integration.daemon_scripts import SLOW, trainer_spec, write_script
from tests.support.site import Site, opened_site
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
agent_timeout_s: 4
hold_idle_s: 20
"""
CURVE = Curve(sizes=(1, 2, 4), samples_per_s=(100.0, 190.0, 350.0))
HOLD, RELEASE = TrainerChange(is_held=True), TrainerChange(is_held=False)


class VerbSite(Site):
    """Two nodes; every test submits into a folder of its own."""

    prefix = ""

    def spec(self, name: str, **changes: object) -> TrainerSpec:
        fields: dict[str, object] = {
            "name": name,
            "checkpoint_interval_s": 1.0,
            "curve": CURVE,
            "environment": (("OMP_NUM_THREADS", "1"),),
        }
        return trainer_spec(self.base / self.prefix / name, SLOW, **{**fields, **changes})

    def submit(self, name: str, **changes: object) -> str:
        return self.client.submit(self.spec(name, **changes)).record.trainer_id

    def times(self, trainer_id: str) -> tuple[float, float]:
        """Return when it started and ended."""
        record = self.view(trainer_id).record
        return record.started_s or 0.0, record.ended_s or 0.0

    def left(self, trainer_id: str) -> int:
        """Wait until it has no workers; return its steps."""

        def gone() -> bool:
            view = self.view(trainer_id)
            return not view.observed_nodes and view.record.progress.size == 0

        wait_for(gone, what=f"{trainer_id} has left its nodes")
        return self.view(trainer_id).record.progress.step


shared_site = opened_site(VerbSite, n_nodes=2, policy=POLICY)


@pytest.mark.long
def test_a_held_trainer_leaves_its_nodes_and_goes_on_from_there_when_released(
    site: VerbSite,
) -> None:
    trainer = site.submit("held")
    site.observed(trainer, 2)
    site.trains_on(trainer)
    said = site.client.change(trainer, HOLD)
    assert "It is held" in said.waits
    steps = site.left(trainer)
    other = site.submit("other", n_max=2)  # its nodes are for others
    site.observed(other, 2)
    site.sidecar.kill()  # the journal knows that it is held
    site.sidecar.start()
    site.observed(other, 2)
    view = site.view(trainer)
    assert (view.observed_nodes, view.planned_nodes) == ((), ())
    assert view.record.state is TrainerState.PARKED
    # Workers whose end the killed daemon had not written yet are explained until agents tell of it.
    wait_for(lambda: site.client.explain(trainer).sentences == (view.waits,))
    site.client.cancel(other, now=True)
    assert site.client.change(trainer, RELEASE).waits == ""
    site.observed(trainer, 2)
    site.trains_on(trainer)
    assert site.view(trainer).record.progress.step >= steps
    assert any(one.resumed_from for one in site.rescales(trainer))


def test_sizes_change_in_place_while_it_trains(site: VerbSite) -> None:
    trainer = site.submit("sizes")
    site.observed(trainer, 2)
    before = site.view(trainer).record
    site.client.change(trainer, TrainerChange(n_max=1, name="one", weight=2.0))
    site.trains_at(trainer, 1)
    site.trains_on(trainer)
    site.client.change(trainer, TrainerChange(n_min=2, n_max=2))
    site.trains_at(trainer, 2)
    site.client.change(trainer, TrainerChange(n_min=1, n_max=4, sizes=(1, 4)))
    site.trains_at(trainer, 1)  # of two nodes
    assert "1,4 nodes only" in " ".join(site.client.explain(trainer).sentences)
    site.client.change(trainer, TrainerChange(n_min=2, n_max=2, sizes=()))
    site.trains_at(trainer, 2)
    record = site.view(trainer).record
    assert (record.spec.name, record.spec.weight) == ("one", 2.0)
    assert record.progress.step > before.progress.step
    with pytest.raises(BftError, match="BFT-1002"):
        site.client.change(trainer, TrainerChange(n_min=3))
    site.client.cancel(trainer, now=True)
    with pytest.raises(BftError, match="BFT-1043"):
        site.client.change(trainer, HOLD)


def test_a_requeued_trainer_stops_its_workers_and_starts_again_from_its_checkpoint(
    site: VerbSite,
) -> None:
    trainer = site.submit("requeued")
    site.observed(trainer, 2)
    site.trains_on(trainer)
    workers = {f.worker_id for f in site.client.logs(trainer)}
    assert site.client.requeue(trainer).record.trainer_id == trainer
    site.was_parked(trainer)
    wait_for(lambda: site.view(trainer).waits == "", what="it waits for nodes again")
    site.trains_at(trainer, 1, 2)
    assert {f.worker_id for f in site.client.logs(trainer)} - workers
    assert any(one.resumed_from for one in site.rescales(trainer))
    site.client.cancel(trainer)
    steps = site.in_state(trainer, TrainerState.CANCELLED).record.progress.step
    again = site.client.requeue(trainer).record
    assert again.trainer_id != trainer
    assert again.spec.checkpoint_dir == site.view(trainer).record.spec.checkpoint_dir
    site.trains_at(again.trainer_id, 1, 2)
    assert site.view(again.trainer_id).record.progress.step >= steps


def test_a_second_requeue_names_the_trainer_that_goes_on(site: VerbSite) -> None:
    trainer = site.submit("twice", hold=True)
    site.client.cancel(trainer)
    new = site.client.requeue(trainer).record.trainer_id
    with pytest.raises(BftError) as refused:
        site.client.requeue(trainer)
    error = refused.value
    assert (error.code, int(error.exit_code)) == ("BFT-1464", 2)
    assert error.cause.startswith(f"Trainer {trainer} goes on as {new}, ")
    assert error.next_step.endswith(f"to start that one again: bftrainer requeue {new}")
    site.client.cancel(new, now=True)


@pytest.mark.long
def test_trainers_start_after_others_and_at_their_time(site: VerbSite) -> None:
    first = site.submit("first", epochs=5)
    then = site.submit("then", epochs=1, after=(first,))
    third = site.submit("third", epochs=1, after=(then,))
    doomed = site.submit("doomed", hold=True)
    never = site.submit("never", epochs=1, after=(doomed, first))
    anyway = site.submit("anyway", epochs=1, after_any=(doomed,))
    assert site.view(then).waits == f"It starts after {first} (Dependency)."
    site.in_state(third, TrainerState.FINISHED)
    times = [site.times(i) for i in (first, then, third)]
    assert times[0][1] <= times[1][0] <= times[1][1] <= times[2][0]
    site.client.cancel(doomed)
    site.in_state(anyway, TrainerState.FINISHED)
    assert "DependencyNeverSatisfied" in site.view(never).waits
    assert f"{doomed} has been cancelled" in site.client.explain(never).sentences[0]
    with pytest.raises(BftError, match="BFT-1004"):
        site.submit("unknown", after=("t999",))
    begin_s = time.time() + 3.0
    late = site.submit("late", epochs=1, begin_s=begin_s)
    assert "BeginTime" in site.view(late).waits
    site.in_state(late, TrainerState.FINISHED)
    assert site.times(late)[0] >= begin_s
    assert site.view(never).record.started_s is None


@pytest.mark.long
def test_an_array_runs_as_many_as_it_may_and_a_run_is_extended_elsewhere(
    site: VerbSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = site.base / site.prefix
    script = write_script(directory, SLOW)
    monkeypatch.chdir(directory)
    monkeypatch.setenv("BFTRAINER_SOCKET", str(site.client.socket_path))
    run = ["--export", "OMP_NUM_THREADS=1", "--wait", "--json"]
    assert main(["submit", "--array", "3,5%1", "--epochs", "2", *run, str(script)]) == 0
    records = [v["record"] for v in json.loads(capsys.readouterr().out)["trainers"]]
    assert [r["spec"]["name"] for r in records] == ["train_3", "train_5"]
    assert [dict(r["spec"]["environment"])["BFT_ARRAY_INDEX"] for r in records] == ["3", "5"]
    assert records[0]["ended_s"] <= records[1]["started_s"]
    assert main(["status", "--array", records[1]["trainer_id"], "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["array"]
    assert [(row["index"], row["state"]) for row in rows] == [(3, "finished"), (5, "finished")]
    assert {row["checkpoint_step"] for row in rows} == {20}, "two epochs of ten"
    source = Path(records[0]["spec"]["checkpoint_dir"])
    kept = sorted(source.glob("*.bft"))
    more = ["--resume-from", records[0]["trainer_id"], "-J", "more", "--epochs", "4"]
    assert main(["submit", *more, *run, str(script)]) == 0
    record = json.loads(capsys.readouterr().out)["record"]
    assert record["progress"]["epoch"] == 4
    assert any(one.resumed_from for one in site.rescales(record["trainer_id"]))
    assert sorted(source.glob("*.bft")) == kept
    assert record["progress"]["total"] == 4 * 240
    assert main(["status", "-o", "id,done,left", record["trainer_id"]]) == 0
    assert capsys.readouterr().out.split()[3:] == [record["trainer_id"], "100.0%", "-"]
    assert main(["submit", "--fresh", "-J", "more", "--epochs", "1", *run, str(script)]) == 0
    record = json.loads(capsys.readouterr().out)["record"]
    assert (record["progress"]["epoch"], record["progress"]["step"]) == (1, 10)
    assert list(Path("bft-more").glob("set-aside-*/*.bft"))


@pytest.mark.long
@pytest.mark.parametrize("is_module", [False, True])
def test_a_loss_that_is_nan_stays_told_by_all_verbs(
    site: VerbSite,
    *,
    is_module: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a script, and of a module whose loss is in another module of its package."""
    directory = site.base / f"nan-{is_module}"
    text = SLOW.replace(").backward()", ").mul(lost).backward()")
    for place, module in ((directory, "loss"), (directory / "pkg", ".loss")):
        write_script(place, f"from {module} import lost\n{text}")
        (place / "loss.py").write_text("lost = float('nan')\n")
    (directory / "pkg" / "__init__.py").touch()
    monkeypatch.chdir(directory)
    monkeypatch.setenv("BFTRAINER_SOCKET", str(site.client.socket_path))
    words = ["-m", "pkg.train"] if is_module else ["train.py"]
    run = ["--export", "OMP_NUM_THREADS=1", "--wait", "--json", "--steps", "8"]
    assert main(["submit", *run, *words]) == 0
    record = json.loads(capsys.readouterr().out)["record"]
    trainer, progress = record["trainer_id"], record["progress"]
    assert (record["state"], progress["step"]) == ("finished", 8)
    for verb in ("status", "explain"):
        assert main([verb, trainer]) == 0
        assert "BFT-1435: The loss was NaN or infinite in 3 updates in a row" in (
            capsys.readouterr().out
        )
    assert main(["status", "-o", "reason", trainer]) == 0
    assert "BFT-1435" in capsys.readouterr().out
    assert page_row(site.view(trainer))["why"].startswith("BFT-1435")  # of the page


def test_a_run_is_what_its_arguments_say(
    site: VerbSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = site.base / site.prefix
    directory.mkdir(parents=True)
    monkeypatch.chdir(directory)
    monkeypatch.setenv("BFTRAINER_SOCKET", str(site.client.socket_path))
    shutil.copy(SCRIPTS / "sweep.py", directory)
    run = ["--export", "OMP_NUM_THREADS=1", "--export", f"BFT_TEST_DIR={directory}"]
    first = ["sweep.py", "--lr", "0.1", "--epochs", "2"]
    other = ["sweep.py", "--lr", "0.01", "--epochs", "3"]
    assert main(["submit", "--wait", *run, *first]) == 0
    kept = sorted(Path("bft-sweep").glob("*.bft"))
    assert main(["submit", *run, *other]) == 2
    assert "BFT-1450" in capsys.readouterr().err
    assert main(["submit", "-J", "late", "--hold", "--parsable", *run, *other]) == 0
    late = capsys.readouterr().out.strip()
    shutil.copy(kept[-1], "bft-late")  # it comes after the submission
    site.client.change(late, RELEASE)
    record = site.in_state(late, TrainerState.FAILED).record
    assert record.failures == 1
    assert "BFT-1450" in record.failing.cause
    assert "--lr 0.01 (it has --lr 0.1)" in record.failing.cause
    assert Path("bft-late", kept[-1].name).read_bytes() == kept[-1].read_bytes()
    assert main(["submit", "-J", "late", "--wait", "--continue", *run, *other]) == 0
    result = json.loads(Path("result.json").read_text())
    assert (result["rates"], result["steps"]) == ([0.01], 15)
    more = ["sweep.py", "--lr", "0.01", "--epochs", "4"]  # own arguments, a greater length
    assert main(["submit", "-J", "late", "--wait", *run, *more]) == 0
    assert json.loads(Path("result.json").read_text())["steps"] == 20
    assert main(["submit", "-J", "heir", "--resume-from", late, "--wait", *run, *first]) == 0
    assert "heir goes on from step" in capsys.readouterr().err
