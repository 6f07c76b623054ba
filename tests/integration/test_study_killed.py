"""A study whose loop or daemon is killed: no trial is lost, none is trained twice, same best."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from bftrainer import process
from tests.integration.study_fixtures import POLICY, StudyUser, outcome
from tests.support.site import Site
from tests.support.waiting import wait_for

KINDS = ("loop", "daemon", "both")
RULE = {"name": "sha", "trials": 6, "least": 1, "most": 4, "eta": 2}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site.open(tmp_path_factory.mktemp("site"), n_nodes=3, policy=POLICY) as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(site: Site) -> tuple[dict[str, Any], float]:
    """The study without kills, and how long it lived."""
    user = StudyUser(site, site.base / "reference")
    done = user.does("run", str(user.write("ref", rule=RULE, parallel=3)), "train.py")
    took_s = time.time() - user.began_s("ref")
    assert done.is_ok, done.stderr
    assert set(user.trained().values()) == {1}
    assert sum(user.trained().values()) == 6 + 3 + 2
    return user.summary("ref"), took_s


def _killed(
    site: Site, reference: tuple[dict[str, Any], float], share: float, kind: str, name: str
) -> None:
    """Run the study, kill at a share of its life, go on, compare."""
    expected, took_s = reference
    user = StudyUser(site, site.base / name)
    user.write("ref", rule=RULE, parallel=3)
    loop = user.start("ref", "ref.yaml", "train.py")
    try:
        wait_for((user.home / "ref.study" / "study.json").exists, interval_s=0.01)
        deadline = time.monotonic() + share * took_s
        while time.monotonic() < deadline and loop.poll() is None:
            time.sleep(0.005)
        if kind in ("loop", "both"):
            process.kill_group(loop.pid)
            loop.wait()
        if kind in ("daemon", "both"):
            site.sidecar.kill()
            site.sidecar.start()
        if loop.poll() is None:
            assert loop.wait(90) == 0, (user.home / "ref.out").read_text()
        else:
            done = user.does("run", "ref.yaml", "train.py")
            assert done.is_ok, done.stderr
    finally:
        process.kill_group(loop.pid)
        loop.wait()
    found = user.summary("ref")
    assert outcome(found) == outcome(expected)
    assert found["best"] == expected["best"]
    assert {k: n for k, n in user.trained().items() if n != 1} == {}, "trained twice"
    assert sum(user.trained().values()) == 6 + 3 + 2


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("share", "kind"), [(0.5, "loop"), (0.6, "daemon"), (0.75, "both"), (0.9, "both")]
)
def test_killed_once_a_study_ends_as_without(
    site: Site, reference: tuple[dict[str, Any], float], share: float, kind: str
) -> None:
    _killed(site, reference, share, kind, f"{kind}-{share}")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_at_fifty_instants(site: Site, reference: tuple[dict[str, Any], float]) -> None:
    for number in range(50):
        share = (number + 0.5) / 50
        _killed(site, reference, share, KINDS[number % 3], f"killed-{number}")
