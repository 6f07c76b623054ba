"""A study with the default sampler goes on after it was killed, and the sampler learns."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("optuna")

from optuna.study import StudyDirection

from bftrainer.study.configurations import FloatParameter
from bftrainer.study.storage import Drawer, distributions_of
from tests.integration.study_fixtures import BOTH, LOOP, POLICY, StudyUser, Victim
from tests.support.site import Site

TRIALS = 14  # tpe of Optuna 5.0 draws ten at random


@pytest.mark.long
@pytest.mark.timeout(240)
def test_tpe_is_killed_and_learns(tmp_path: Path) -> None:
    with Site.open(tmp_path / "site", n_nodes=3, policy=POLICY) as site:
        user = StudyUser(site, tmp_path / "home")
        rule = {"name": "asha", "trials": TRIALS, "least": 1, "most": 2, "eta": 2}
        user.write("learns", sampler="tpe", rule=rule, parallel=2)
        kills = [(lambda one: _trials(one) >= 5, LOOP), (lambda one: _trials(one) >= 12, BOTH)]
        Victim(user, "learns").run(kills)
        summary, trained = user.summary("learns"), user.trained()
    assert (summary["state"], len(summary["trials"])) == ("over", TRIALS)
    assert set(trained.values()) == {1}, f"trained twice: {trained}"
    space = distributions_of({"lr": FloatParameter(type="float", low=0.001, high=0.3, log=True)})
    at_random = Drawer("random", 0, space, StudyDirection.MINIMIZE)
    drawn = [one["parameters"]["lr"] for one in summary["trials"]]
    expected = [at_random.draw(number, ())["lr"] for number in range(TRIALS)]
    assert drawn[0] == expected[0]
    assert drawn[-1] != expected[-1], "it has left its random phase"


def _trials(user: StudyUser) -> int:
    return len({number for number, _ in user.trained()})
