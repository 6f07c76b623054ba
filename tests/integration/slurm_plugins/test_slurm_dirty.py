"""Nodes that are unusable after a pilot, on a real Slurm; pilots that go without a signal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.daemon.decider import DECISION
from bftrainer.daemon.harm.ledger import KIND as HARM
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.reports import UnusableNode
from slurm_plugins.adapter import create
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import daemon_under, running_cluster, whole_look
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]

REST_S = 30.0
POLICY = f"""\
quarantine_s: {REST_S / 60.0}
poll_interval_s: 0.3
requests_per_minute: 2000
reserve_nodes_per_type: 0
min_gap_s: 0
gap_margin_s: 0
"""
EPILOG = """\
#!/bin/sh
[ "$SLURM_JOB_PARTITION" = bf ] || exit 0
[ -e {there}/fails-$SLURMD_NODENAME ] && rm {there}/fails-$SLURMD_NODENAME && exit 1
while [ -e {there}/hangs-$SLURMD_NODENAME ]; do sleep 0.1; done
"""


@pytest.fixture
def cluster() -> Iterator[SlurmTestCluster]:
    """Three nodes; an Epilog that fails, or does not end, after the pilot on a node."""
    with running_cluster(n_nodes=3, bf_interval_s=2, scheduler_parameters=FAST_CYCLE) as running:
        script = running.directory / "epilog"
        script.write_text(EPILOG.format(there=running.directory))
        script.chmod(0o755)
        conf = running.config.slurm_conf
        # With 2 a node that is set down comes back when its slurmd next registers.
        text = conf.read_text().replace("ReturnToService=2", "ReturnToService=0")
        conf.write_text(f"{text}Epilog={script}\n")
        assert running.command("scontrol", "reconfigure").is_ok
        try:
            yield running
        finally:
            for file in running.directory.glob("hangs-*"):
                file.unlink()


sidecar = daemon_under(POLICY)


def _harm(sidecar: DaemonProcess, node: str) -> UnusableNode | None:
    nodes = sidecar.client.harm(None).leavings.nodes
    return next((one for one in nodes if one.node == node), None)


def _has_been_left(sidecar: DaemonProcess, node: str) -> bool:
    """Whether a look has shown that a pilot's job is gone from the node."""
    nodes: list[str] = []
    for entry in sidecar.entries(HARM):
        nodes += [departure["node"] for departure in entry.payload.get("left", ())]
    return node in nodes


def _first_claim_s(sidecar: DaemonProcess, node: str, after_s: float) -> float | None:
    """When the node was first asked for again."""
    return next(
        (
            entry.at_s
            for entry in sidecar.entries(DECISION)
            if entry.at_s > after_s
            and node in [claim["node"] for claim in entry.payload["plan"]["claims"]]
        ),
        None,
    )


def test_nodes_that_are_unusable_after_a_pilot_are_harm_and_rest(
    cluster: SlurmTestCluster, sidecar: DaemonProcess, tmp_path: Path
) -> None:
    """n1's Epilog fails, n2 is set down by an administrator, n3's Epilog does not end."""
    client = sidecar.client
    trainer = client.submit(light_spec(tmp_path / "slow", n_max=3)).record.trainer_id
    wait_for(lambda: len(client.trainer(trainer).observed_nodes) == 3, what="three train")
    (cluster.directory / "fails-n1").touch()
    (cluster.directory / "hangs-n3").touch()
    jobs = {
        name: cluster.submit(n_nodes=1, duration_s=600, extra_args=(f"--nodelist={name}",))
        for name in ("n1", "n2", "n3")
    }
    wait_for(lambda: cluster.started_s(jobs["n2"]), what="the job on n2")
    # A node that is down in the first look without its pilot may have fallen under it: no release.
    wait_for(lambda: _has_been_left(sidecar, "n2"), what="the daemon sees that the pilot left n2")
    cluster.set_node("n2", "down", "no power")
    drained = wait_for(lambda: _harm(sidecar, "n1"), what="n1 is drained")
    assert (drained.state, drained.job_id != jobs["n1"]) == ("drained", True)
    assert "epilog error" in drained.reason.lower(), "as Slurm says it"
    assert drained.pilot_id
    down = wait_for(lambda: _harm(sidecar, "n2"), what="n2 is down")
    assert (down.state, down.reason) == ("down", "no power")

    # Usable again, n1 gets no pilot for a while, whoever the daemon is.
    cluster.cancel(jobs["n1"])
    sidecar.stop()
    sidecar.start()
    cluster.set_node("n1", "resume")
    sentence = wait_for(
        lambda: next((n.reason for n in client.nodes() if "BFT-1334" in n.reason), ""),
        what="n1 rests",
    )
    assert "once it was unusable soon after a pilot, last drained (" in sentence
    assert any(one.startswith("n1: BFT-1334") for one in client.status().cooling_nodes)
    again_s = wait_for(
        lambda: _first_claim_s(sidecar, "n1", drained.at_s), what="n1 is asked for again"
    )
    assert again_s >= drained.at_s + REST_S

    # A restarted daemon no longer knows which pilot completes on n3; the next one is seen.
    (cluster.directory / "hangs-n3").unlink()
    cluster.cancel(jobs["n3"])
    wait_for(lambda: "n3" in client.trainer(trainer).observed_nodes, what="n3 trains again")
    (cluster.directory / "hangs-n3").touch()
    jobs["n3"] = cluster.submit(n_nodes=1, duration_s=600, extra_args=("--nodelist=n3",))
    stuck = wait_for(lambda: _harm(sidecar, "n3"), what="n3 is stuck", timeout_s=300)
    assert stuck.state == "completing"
    (cluster.directory / "hangs-n3").unlink()
    found = wait_for(
        lambda: next(
            (h for h in [client.harm(None).leavings] if (h.max_s or 0.0) > stuck.after_s), None
        ),
        what="its processes are gone at last",
    )
    assert found.by_pilots.unusable == 3
    assert found.by_pilots.left >= 4
    assert 'bftrainer_nodes_left_unusable_total{by="pilot"} 1.0' in client.metrics()
    client.cancel(trainer, now=True)


def test_a_pending_pilot_is_cancelled_without_a_signal(
    cluster: SlurmTestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a pending job, scancel with a signal retries for more than a minute."""
    program, log = tmp_path / "bin" / "scancel", tmp_path / "asked"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {shutil.which("scancel")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    system = create(cluster.config.batch_options())

    def launch(pilot_id: str) -> str:
        return system.launch_pilot(
            PilotRequest(
                pilot_id=pilot_id,
                node="n1",
                time_limit_s=600,
                agent_argv=(sys.executable, "-I", "-c", "import signal; signal.pause()"),
                log_path=cluster.directory / f"{pilot_id}.log",
                gpus=cluster.config.gpus_per_node,
            )
        )

    def states() -> dict[str, str]:
        return {j.job_id: j.state.value for j in whole_look(system).jobs or ()}

    runs = launch("p000001")
    wait_for(lambda: states().get(runs) == "running", what="the first runs")
    waits = launch("p000002")
    wait_for(lambda: states().get(waits) == "pending", what="the second waits for it")
    system.cancel_pilots([runs, waits])
    assert sorted(log.read_text().splitlines()) == sorted([f"-b -s TERM {runs}", waits])
    wait_for(lambda: not states().keys() & {runs, waits}, what="both are gone")
