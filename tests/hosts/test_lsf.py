"""The stand-in of LSF, whose nodes have networks of their own: a trainer over hosts, and a cut.

Jobs have the network and the name of their host; processes and files are those of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.elastic.loop.try_record import RECORD as VARIABLE
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.lab.try_records import Records, epochs
from tests.integration.daemon_scripts import SCALES, SCALING, trainer_spec
from tests.integration.lsf_fixtures import PARAMETERS, running_lsf
from tests.support.hosts import Cluster, running_hosts
from tests.support.hosts.plan import LOGIN
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]
POLICY = """\
poll_interval_s: 0.5
requests_per_minute: 1000
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
"""


class LoginDaemon(DaemonProcess):
    """A daemon with the login host's network; it finds its address by itself."""

    cluster: Cluster

    def argv(self) -> tuple[str, ...]:
        given = ("--bind", "--agent-address", "127.0.0.1")
        plain = (word for word in super().argv() if word not in given)
        return (*self.cluster.enter(LOGIN), *plain)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LoginDaemon]:
    with running_hosts(n_nodes=3) as hosts:
        enter = {node: hosts.enter(node) for node in hosts.plan.nodes}
        with running_lsf(dialect="ibm", n_nodes=3, parameters=PARAMETERS, enter=enter) as lsf:
            options = lsf.config.batch_options()
            made = LoginDaemon(
                tmp_path / "state", batch_system="lsf", batch_options=options, policy=POLICY
            )
            made.cluster = hosts
            made.start()
            try:
                yield made
            finally:
                made.stop()


def test_a_trainer_over_hosts_goes_on_while_one_is_cut_off(
    daemon: LoginDaemon, tmp_path: Path
) -> None:
    noted = tmp_path / "noted"
    noted.mkdir()
    told = (("OMP_NUM_THREADS", "1"), (VARIABLE, str(noted)))
    spec = trainer_spec(tmp_path / "trainer", SCALES, n_max=3, environment=told, curve=SCALING)
    trainer = daemon.client.submit(spec).record.trainer_id

    def trains_at(size: int) -> None:
        before = daemon.client.trainer(trainer).record.progress.samples

        def reached() -> bool:
            progress = daemon.client.trainer(trainer).record.progress
            return progress.size == size and progress.samples > before

        wait_for(reached, what=f"it trains at {size}")

    trains_at(3)
    daemon.cluster.cut("n2")
    trains_at(2)
    daemon.cluster.mend("n2")
    trains_at(3)
    daemon.client.cancel(trainer)
    wait_for(lambda: daemon.client.trainer(trainer).record.state.is_final, what="it ends")
    found = Records(noted)
    found.look()
    assert {name.rpartition("-")[0] for name in found.processes} == {"n1", "n2", "n3"}
    *whole, _ = epochs(found.processes)
    assert whole
    assert all(use.is_once for use in whole)
