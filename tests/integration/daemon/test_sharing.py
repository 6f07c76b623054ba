"""A daemon with limits, fair share and a blackout: what trainers have, and what users are told."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bftrainer.daemon import journal_replay
from bftrainer.model.errors import BftError
from tests.integration.daemon_scripts import light_spec
from tests.support.site import Site
from tests.support.waiting import wait_for

POLICY = (
    "poll_interval_s: 0.2\nidle_confirmations: 1\nreserve_nodes_per_type: 0\nhold_idle_s: 0\n"
    "gap_margin_s: 0\nmin_gap_s: 0\ntime_zone: UTC\nfair_share_half_life_s: 3600\n"
)


def around_now() -> str:
    """A dated window that has begun and lasts for days."""
    now = datetime.now(UTC)
    form = "%Y-%m-%d %H:%M"
    return f"{now - timedelta(minutes=1):{form}} to {now + timedelta(days=3):{form}}"


@pytest.mark.long
def test_limits_and_blackouts_as_users_see_them(tmp_path: Path) -> None:
    elsewhere = tmp_path / "shared" / "pilots"  # as on several hosts
    policy = f"{POLICY}pilots_dir: {elsewhere}\n"
    limited = policy + 'max_nodes_by_user: {"*": 1}\n'
    with Site.open(tmp_path, n_nodes=2, policy=limited, options=()) as site:
        path = site.sidecar.state_dir / "policy.yaml"

        def with_policy(text: str) -> None:
            path.write_text(text)
            os.kill(site.sidecar.pid, signal.SIGHUP)

        def told(trainer_id: str, words: str) -> None:
            wait_for(
                lambda: words in " ".join(site.client.explain(trainer_id).sentences),
                what=f"{trainer_id} is told of {words}",
            )

        trainer = site.client.submit(light_spec(tmp_path / "a")).record.trainer_id
        site.observed(trainer, 1)
        told(trainer, "and the policy allows 1 at once (max_nodes_by_user)")
        with pytest.raises(BftError, match="BFT-1008"):
            site.client.submit(light_spec(tmp_path / "b", n_min=2))
        second = site.client.submit(light_spec(tmp_path / "c")).record.trainer_id
        told(second, "and the policy allows 1 at once (max_nodes_by_user)")

        with_policy(policy + f"blackouts: [{around_now()}]\n")
        site.observed(trainer, 0)
        told(trainer, "which has begun")
        wait_for(
            lambda: not [job for job in site.look().jobs or () if job.pilot_id],
            what="the nodes are given back",
        )

        with_policy(policy)
        site.observed(trainer, 1)
        site.observed(second, 1)
        site.client.cancel(trainer, now=True)
        site.client.cancel(second, now=True)
        site.sidecar.stop()
        assert list(elsewhere.glob("p*/agent.log"))
        assert not (site.sidecar.state_dir / "pilots").exists()
        again = list(journal_replay.take_again(site.sidecar.entries()))
    assert len(again) > 4
    assert all(one.is_equal for one in again)
