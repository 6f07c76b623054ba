"""The kill switch: all nodes are back by the deadline, trainers stay, and it outlives daemons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.daemon import kill_switch
from bftrainer.model.trainer import TrainerState
from tests.integration.daemon_scripts import LIGHT, light_spec, trainer_spec
from tests.support.site import Site
from tests.support.waiting import wait_for

POLICY = "poll_interval_s: 0.2\nidle_confirmations: 1\nreserve_nodes_per_type: 0\n"
# It takes no step after the first one, so it cannot leave when it is told to.
STUBBORN = LIGHT.replace("time.sleep(0.05)", "open('hangs', 'w').close(); time.sleep(600)")


def test_all_nodes_come_back_and_none_is_taken_until_it_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Site.open(tmp_path, n_nodes=2, policy=POLICY, options=()) as site:
        socket = str(site.client.socket_path)
        trainer = site.client.submit(light_spec(tmp_path / "a")).record.trainer_id
        site.observed(trainer, 2)
        assert main(["drain", "--all", "--json", "--socket", socket]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["left"] == 0
        assert len(told["nodes"]) == 2
        assert told["took_s"] < 30.0  # long before the deadline: workers saved and left
        site.was_parked(trainer)
        view = site.client.status()
        assert "bftrainer resume" in view.draining
        assert site.view(trainer).record.state is not TrainerState.CANCELLED
        assert any("bftrainer resume" in s for s in site.client.explain(trainer).sentences)
        assert main(["status", "--socket", socket]) == 0
        assert "drained     All nodes are given back" in capsys.readouterr().out

        # The next daemon knows it, too.
        site.sidecar.kill()
        site.sidecar.start()
        wait_for(lambda: site.client.status().nodes_idle == 2, what="a poll")
        looks = site.client.status().polling
        assert looks is not None
        wait_for(
            lambda: (now := site.client.status().polling) and now.looks > looks.looks + 2,
            what="more polls",
        )
        view = site.client.status()
        assert (view.nodes_held, view.nodes_requested) == (0, 0)
        assert view.draining

        assert main(["resume", "--socket", socket]) == 0
        site.observed(trainer, 2)
        assert site.client.status().draining == ""
        site.client.cancel(trainer, now=True)


@pytest.mark.long
def test_whoever_does_not_leave_is_ended_at_the_deadline_by_the_next_daemon(
    tmp_path: Path,
) -> None:
    with Site.open(tmp_path, n_nodes=1, policy=POLICY, options=()) as site:
        spec = trainer_spec(tmp_path / "a", STUBBORN, runtime="mpi", epochs=None, n_max=1)
        trainer = site.client.submit(spec).record.trainer_id
        site.observed(trainer, 1)
        wait_for((tmp_path / "a" / "hangs").exists, what="it hangs")
        site.client.drain(8.0)
        site.sidecar.kill()
        site.sidecar.start()

        def is_empty() -> bool:
            view = site.client.status()
            return view.nodes_held + view.nodes_requested == 0

        wait_for(is_empty, what="the node is back")
        drain, *_ = (
            e.payload_as(kill_switch.Drain) for e in site.sidecar.entries(kill_switch.KIND)
        )
        ended = [p for e in site.sidecar.entries() for p in e.pilots if not p.state.is_active]
        gone_s = ended[0].ended_s
        assert gone_s is not None
        assert gone_s > drain.deadline_s - kill_switch.END_S
        assert not site.view(trainer).record.state.is_final
        site.client.cancel(trainer, now=True)


@pytest.mark.long
def test_resuming_keeps_nodes_that_workers_have_not_left(tmp_path: Path) -> None:
    with Site.open(tmp_path, n_nodes=1, policy=POLICY, options=()) as site:
        spec = trainer_spec(tmp_path / "a", STUBBORN, runtime="mpi", epochs=None, n_max=1)
        trainer = site.client.submit(spec).record.trainer_id
        wait_for((tmp_path / "a" / "hangs").exists, what="it hangs")
        pilots = {node.pilot_id for node in site.client.nodes()}
        site.client.drain(600.0)
        wait_for(lambda: site.client.status().draining, what="it drains")
        site.client.resume()
        wait_for(lambda: not site.client.status().draining, what="it resumes")
        assert {node.pilot_id for node in site.client.nodes()} == pilots
        assert site.client.status().nodes_held == 1
        site.client.cancel(trainer, now=True)
