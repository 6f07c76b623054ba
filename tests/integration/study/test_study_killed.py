"""A study whose loop or daemon is killed at any instant ends as it would have without."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.study_fixtures import (
    BOTH,
    DAEMON,
    HALVING,
    HALVING_EPOCHS,
    LOOP,
    POLICY,
    StudyUser,
    Victim,
    outcome,
)
from tests.support.site import Site, opened_site

pytestmark = pytest.mark.long
INSTANTS = 17  # for each kind


site = opened_site(n_nodes=3, policy=POLICY)


@pytest.fixture(scope="module")
def reference(site: Site) -> tuple[dict[str, Any], float]:
    """The study without kills, and how long it lived."""
    user = StudyUser(site, site.base / "reference")
    user.write("half", **HALVING)
    done = user.does("run", "half.yaml", "train.py")
    life_s = time.time() - user.began_s("half")
    assert done.is_ok, done.stderr
    return user.summary("half"), life_s


def _lived(seconds: float) -> Callable[[StudyUser], bool]:
    return lambda user: time.time() - user.began_s("half") >= seconds


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", [LOOP, DAEMON, BOTH])
def test_no_trial_is_lost_and_none_is_trained_twice(
    site: Site, reference: tuple[dict[str, Any], float], kind: str
) -> None:
    expected, life_s = reference
    for number in range(INSTANTS):
        user = StudyUser(site, site.base / f"{kind}-{number}")
        user.write("half", **HALVING)
        Victim(user, "half").run([(_lived((number + 0.5) / INSTANTS * life_s), kind)])
        found, trained = user.summary("half"), user.trained()
        assert outcome(found) == outcome(expected), number
        assert found["best"] == expected["best"]
        assert set(trained.values()) == {1}, f"trained twice: {trained}"
        assert trained.total() == HALVING_EPOCHS
