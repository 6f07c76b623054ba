"""The harness of the real volclava: it comes up, runs a job, and leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

from bftrainer.batch import process
from tests.integration.volclava_fixtures import needs_volclava, volclava_config
from tests.support.volclava import RealVolclava
from tests.support.waiting import wait_for

pytestmark = needs_volclava


def _processes_of(directory: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(directory) in text:
            found.append(entry.name)
    return found


def test_it_comes_up_runs_a_job_as_alice_and_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "lab"
    with RealVolclava(volclava_config(directory)) as cluster:
        states = cluster.host_states()
        assert {states[name] for name in cluster.node_names} == {"ok"}
        assert states["lsfm"] == "closed_Full"

        job_id = cluster.submit(n_nodes=2, duration_s=1, limit_s=60)
        wait_for(lambda: cluster.ended_s(job_id), what="the end of the job")
        started_s, ended_s = cluster.started_s(job_id), cluster.ended_s(job_id)
        assert started_s is not None
        assert ended_s is not None
        assert 1 <= ended_s - started_s < 30

        # From outside, as the adapter calls them: the given environment arrives in the job.
        noted = cluster.directory / "scratch" / "noted"
        done = process.run(
            ["bsub", "-q", "bf", "-o", "/dev/null"],
            stdin=f'echo "$(id -un) $(hostname) $WORD" > {noted}.new; mv {noted}.new {noted}',
            env={**cluster.env, "WORD": "given"},
            timeout_s=30,
        )
        assert done.is_ok, done
        wait_for(noted.exists, what="the note of the pilot's account")
        user, host, word = noted.read_text().split()
        assert (user, word) == ("bft", "given")
        assert host in cluster.node_names
        inside = cluster.lab.processes()
        assert len(inside) > 4 * len(cluster.config.host_names)

    assert _processes_of(directory) == []
    assert str(directory) not in Path("/proc/self/mountinfo").read_text()
    # A namespace lives as long as a process in it, or a mount of its file.
    assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]
    assert "nsfs" not in Path("/proc/self/mountinfo").read_text()


def test_a_lab_left_by_a_killed_test_is_ended_by_the_next(tmp_path: Path) -> None:
    config = volclava_config(tmp_path / "lab", n_nodes=1)
    left, following = RealVolclava(config), RealVolclava(config)
    try:
        left.up()
        old = left.lab.processes()
        assert old
        following.up()
        assert not set(old) & set(following.lab.processes())
        assert not any(Path(f"/proc/{pid}").exists() for pid in old[:-1])
    finally:
        following.down()
        left.down()
