"""A daemon whose journal has trainers that nobody can decide on: the others train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.daemon.journal_replay import take_again
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import TrainerState
from milp.problem import Curve
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.other_release import newer
from tests.support.site import Site
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
agent_timeout_s: 4
"""
ENDLESS = Curve(sizes=(10**400,), samples_per_s=(1.0,))


@pytest.mark.long
def test_a_daemon_starts_with_what_another_release_accepted_and_serves_the_others(
    tmp_path: Path,
) -> None:
    with Site.open(tmp_path, n_nodes=2, policy=POLICY) as site:
        site.sidecar.stop()
        with Journal.open(tmp_path / "state" / "journal.db", clock=lambda: 0.0) as journal:
            journal.begin_incarnation()
            spec = trainer_spec(tmp_path / "bad", SLOW, user="bob")
            endless = journal.submit(replace(spec, curve=ENDLESS), 0.0).trainer_id
            unread = journal.submit(spec, 0.0)
            journal.append("note", {}, trainers=[newer(unread)])
        site.sidecar.start()
        innocent = site.client.submit(trainer_spec(tmp_path / "good", SLOW)).record.trainer_id
        site.trains_at(innocent, 1, 2)
        status = site.client.status()
        (said,) = status.left_out
        assert f"BFT-2116: decisions fail on trainer {endless} and leave it out." in said
        told = site.client.explain(endless).sentences
        assert told[0] == said
        assert "cancel it and submit it with other sizes" in told[1]
        held_out = site.view(unread.trainer_id).record
        assert held_out.state is TrainerState.FAILED
        assert "BFT-1028" in held_out.reason
        site.trains_on(innocent)
        assert "bftrainer_left_out 1.0" in site.client.metrics()
        again = list(take_again(site.sidecar.entries("decision")))
        assert again
        assert all(one.is_equal for one in again)
        log = site.sidecar.log.read_text()
        assert log.count("BFT-2116") == 1
        assert log.count("a decision failed; it is repeated") == 1
        site.client.cancel(endless)
        wait_for(lambda: not site.client.status().left_out, what="nobody is left out")
