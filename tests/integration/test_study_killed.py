"""A study whose loop or daemon is killed: no trial is lost, none is trained twice, same best."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from bftrainer import process
from tests.integration.study_fixtures import POLICY, StudyUser, outcome
from tests.support.site import Site
from tests.support.waiting import wait_for

LOOP, DAEMON, BOTH = "loop", "daemon", "both"
RULE = {"name": "sha", "trials": 6, "least": 1, "most": 4, "eta": 2}
EPOCHS = 6 + 3 + 2  # of all trials together
Kill = tuple[Callable[[StudyUser], bool], str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site.open(tmp_path_factory.mktemp("site"), n_nodes=3, policy=POLICY) as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(site: Site) -> tuple[dict[str, Any], float]:
    """The study without kills, and how long it lived."""
    user = StudyUser(site, site.base / "reference")
    user.write("ref", rule=RULE, parallel=3)
    done = user.does("run", "ref.yaml", "train.py")
    life_s = time.time() - user.began_s("ref")
    assert done.is_ok, done.stderr
    _assert_trained_once(user)
    return user.summary("ref"), life_s


def _assert_trained_once(user: StudyUser) -> None:
    trained = user.trained()
    assert {epoch: times for epoch, times in trained.items() if times != 1} == {}
    assert trained.total() == EPOCHS


class _Victim:
    """A study whose loop and daemon are killed and started again."""

    def __init__(self, user: StudyUser) -> None:
        self.user = user
        user.write("ref", rule=RULE, parallel=3)
        self.loop: subprocess.Popen[bytes] = user.start("ref", "ref.yaml", "train.py")
        wait_for((user.home / "ref.study" / "study.json").exists, interval_s=0.01)

    def kill(self, kind: str) -> None:
        is_loop = kind in (LOOP, BOTH)
        if is_loop:
            self.end()
        if kind in (DAEMON, BOTH):
            self.user.site.sidecar.kill()
            self.user.site.sidecar.start()
        if is_loop:
            self.loop = self.user.start("ref", "ref.yaml", "train.py")

    def end(self) -> None:
        process.kill_group(self.loop.pid)
        self.loop.wait()

    def run(self, kills: Sequence[Kill]) -> None:
        try:
            for is_time, kind in kills:
                while not is_time(self.user) and self.loop.poll() is None:
                    time.sleep(0.005)
                self.kill(kind)
            assert self.loop.wait(120) == 0, (self.user.home / "ref.out").read_text()
        finally:
            self.end()


def _check(site: Site, name: str, expected: dict[str, Any], kills: Sequence[Kill]) -> None:
    user = StudyUser(site, site.base / name)
    _Victim(user).run(kills)
    found = user.summary("ref")
    assert outcome(found) == outcome(expected)
    assert found["best"] == expected["best"]
    _assert_trained_once(user)


def _trained(epochs: int) -> Callable[[StudyUser], bool]:
    return lambda user: user.trained().total() >= epochs


def _lived(seconds: float) -> Callable[[StudyUser], bool]:
    return lambda user: time.time() - user.began_s("ref") >= seconds


@pytest.mark.timeout(240)
def test_killed_again_and_again_a_study_ends_as_without(
    site: Site, reference: tuple[dict[str, Any], float]
) -> None:
    kills = [
        (_trained(1), LOOP), (_trained(4), DAEMON), (_trained(7), BOTH), (_trained(10), LOOP)
    ]  # fmt: skip
    _check(site, "again", reference[0], kills)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", [LOOP, DAEMON, BOTH])
def test_killed_at_any_instant_a_study_ends_as_without(
    site: Site, reference: tuple[dict[str, Any], float], kind: str
) -> None:
    expected, life_s = reference
    for number in range(17):  # 51 instants in all
        share = (number + 0.5) / 17
        _check(site, f"{kind}-{number}", expected, [(_lived(share * life_s), kind)])
