"""Trials in a real daemon: submitted as a group, parked at rungs, grown, reported, watched."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace

import pytest

from bftrainer.batch import process
from bftrainer.model.errors import BftError
from bftrainer.model.study import Report, StudyView, TrialTag, TrialView
from bftrainer.model.trainer import TrainerChange, TrainerSpec
from tests.integration.daemon_scripts import trainer_spec
from tests.support.site import Site, opened_site
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
join_window_s: 0.2
agent_timeout_s: 4
hold_idle_s: 20
failure_budget: 2
"""
TRAINS = """\
import os
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=elastic.params()["lr"], momentum=0.9)
data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=24, shuffle=True), epochs=1)
for epoch in run.epochs():
    for x, y in run.batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        run.step()
    run.report(100 * int(os.environ["BFT_TRIAL"]) + epoch + 1)
"""
MOST = 4


site = opened_site(n_nodes=2, policy=POLICY)


def _specs(site: Site, study: str, count: int, **changes: object) -> list[TrainerSpec]:
    spec = trainer_spec(site.base / study, TRAINS, n_max=1, epochs=1, **changes)
    return [
        replace(
            spec,
            name=f"{study}-{number}",
            checkpoint_dir=str(site.base / study / str(number)),
            environment=(("OMP_NUM_THREADS", "1"),),
            trial=TrialTag(study=study, number=number, most=MOST, parameters='{"lr": 0.01}'),
        )
        for number in range(count)
    ]


def _at_rungs(view: StudyView) -> list[TrialView]:
    return [trial for trial in view.trials if trial.waits_at_rung]


@pytest.mark.long
def test_trials_wait_at_their_rung_without_nodes_and_go_on_from_their_state(site: Site) -> None:
    specs = _specs(site, "grow", 3)
    assert [t.tag.number for t in site.client.submit_trials(specs)] == [0, 1, 2]
    wait_for(lambda: len(_at_rungs(site.client.study("grow"))) == 3)
    view = site.client.study("grow")
    assert [t.nodes for t in view.trials] == [0, 0, 0]
    assert [(t.epoch, t.samples, t.state) for t in view.trials] == [(1, 48, "parked")] * 3
    assert [_values(t.reports) for t in view.trials] == [[(1, 1)], [(1, 101)], [(1, 201)]]
    assert site.client.studies()[0].active == 0

    second = view.trials[1].trainer_id
    with pytest.raises(BftError, match="BFT-1601"):
        site.client.change(second, TrainerChange(budget=MOST + 1))
    site.client.change(second, TrainerChange(budget=3))
    wait_for(lambda: site.client.study("grow").trials[1].epoch == 3)
    wait_for(lambda: _at_rungs(site.client.study("grow"))[1:2])
    grown = site.client.study("grow").trials[1]
    assert _values(grown.reports) == [(1, 101), (2, 102), (3, 103)]
    assert grown.samples == 3 * 48

    shown = _verb(site, "status")
    assert "3 trials of grow have no nodes; see 'bftrainer study status'" in shown
    assert second not in shown
    lines = [" ".join(line.split()) for line in _verb(site, "status", second).splitlines()]
    assert {"trial 1 of study grow", "metric 103 after epoch 3"} <= set(lines)

    site.client.change(second, TrainerChange(budget=MOST))
    wait_for(lambda: site.client.study("grow").trials[1].state == "finished")
    site.client.cancel(view.trials[0].trainer_id)
    assert site.client.study("grow").trials[0].state == "cancelled"


def test_a_group_is_submitted_once_and_wholly_or_not_at_all(site: Site) -> None:
    specs = _specs(site, "group", 3, hold=True)
    first = site.client.submit_trials(specs[:2])
    again = site.client.submit_trials(specs)
    assert [t.trainer_id for t in again[:2]] == [t.trainer_id for t in first]
    assert len(site.client.study("group").trials) == 3

    bad = [*_specs(site, "none", 2, hold=True)]
    bad[1] = replace(bad[1], n_min=3, n_max=2)
    with pytest.raises(BftError, match="BFT-1002"):
        site.client.submit_trials(bad)
    bad[1] = replace(bad[0], trial=replace(bad[0].trial or TrialTag(study="", number=0), number=1))
    with pytest.raises(BftError, match="BFT-1604"):
        site.client.submit_trials(bad)
    assert site.client.study("none").trials == ()
    with pytest.raises(BftError, match="BFT-1005"):
        site.client.submit_trials([replace(one, user="nobody") for one in specs])
    for trial in site.client.study("group").trials:
        site.client.cancel(trial.trainer_id)


def test_news_of_a_study_come_at_once(site: Site) -> None:
    specs = _specs(site, "news", 1, hold=True)
    (trial,) = site.client.submit_trials(specs)
    seen = site.client.study("news").seen
    heard: list[tuple[float, StudyView]] = []  # after how long, and what

    def listen() -> None:
        began_s = time.monotonic()
        view = site.client.study("news", seen=heard[0][1].seen if heard else seen)
        heard.append((time.monotonic() - began_s, view))

    listener = threading.Thread(target=listen)
    listener.start()
    site.client.change(trial.trainer_id, TrainerChange(name="renamed"))
    listener.join()
    listen()  # to nothing
    (news_s, news), (nothing_s, nothing) = heard
    assert news.seen.change > seen.change == nothing.seen.change - 1
    assert news_s < nothing_s
    site.client.cancel(trial.trainer_id)


@pytest.mark.long
def test_what_waits_at_its_rung_does_so_after_a_restart(site: Site) -> None:
    site.client.submit_trials(_specs(site, "restart", 1))
    wait_for(lambda: _at_rungs(site.client.study("restart")))
    before = site.client.study("restart")
    site.sidecar.kill()
    site.sidecar.start()
    after = site.client.study("restart")
    assert after.incarnation > before.incarnation
    # The end of the budget is written beside the loop: a daemon killed before hears it again.
    wait_for(lambda: _at_rungs(site.client.study("restart")))
    (trial,) = site.client.study("restart").trials
    assert (trial.epoch, trial.samples) == (1, 48)
    assert trial.reports == before.trials[0].reports
    site.client.change(after.trials[0].trainer_id, TrainerChange(budget=2))
    wait_for(lambda: site.client.study("restart").trials[0].epoch == 2)


def _verb(site: Site, *arguments: str) -> str:
    command = [sys.executable, "-m", "bftrainer", *arguments]
    command += ["--socket", str(site.client.socket_path)]
    return process.run(command, timeout_s=60.0).stdout


def _values(reports: tuple[Report, ...]) -> list[tuple[int, float]]:
    return [(report.epoch, report.value) for report in reports]
