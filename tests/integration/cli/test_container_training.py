"""Trainings in containers, on the embedded batch system and on a real Slurm.

The images are real ones of bubblewrap and Charliecloud: one without any program, to which the
host's are mounted, and a Debian that debootstrap has made, to which only the host's Python is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode
from bftrainer.model.trainer import TrainerSpec, TrainerState
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import SCALES, SCALING, SLOW, trainer_spec
from tests.integration.slurm_fixtures import daemon_on, slurm_cluster
from tests.support.containers import has, host_image, host_mounts
from tests.support.site import Site
from tests.support.waiting import wait_for

__all__ = ["slurm_cluster"]
pytestmark = [pytest.mark.long]

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.3
failure_budget: 2
explore_budget: 0
"""
PROGRAMS = {"bwrap": "bwrap", "charliecloud": "ch-run"}
LOOKING = """\
import json, os
print("SEES " + json.dumps({"os": open("/etc/os-release").read(), "boot": os.path.exists("/boot"),
                            "home": os.path.exists("/home/outside")}), flush=True)
"""
SHORT = SLOW.replace("epochs=1_000_000", "epochs=2")
DEBIAN = "bookworm"
LIBRARIES = "libssl3,libffi8,libbz2-1.0,liblzma5,zlib1g,libsqlite3-0"  # of the host's Python
MIRROR_LIMIT_S = 600.0


def _needs(runtime: str) -> None:
    program = PROGRAMS[runtime]
    if not has(program):
        pytest.skip(f"no {program} here (apt-get install bubblewrap charliecloud)")


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A minimal Debian, without Python."""
    if not has("debootstrap") or os.geteuid() != 0:
        pytest.skip("no debootstrap here, or not root (apt-get install debootstrap)")
    image = tmp_path_factory.mktemp("debian") / "root"
    argv = ("debootstrap", "--variant=minbase", f"--include={LIBRARIES}", DEBIAN, str(image))
    made = process.run(argv, timeout_s=MIRROR_LIMIT_S)
    if not made.is_ok:
        pytest.skip(f"no Debian could be fetched: {made.stderr[-200:]}")
    yield image
    shutil.rmtree(image, ignore_errors=True)


def _mounts_of_debian() -> str:
    """Return the mounts of the host's Python, but not of the host's programs and libraries."""
    return ",".join(place for place in host_mounts().split(",") if place != "/usr")


def _contained(spec: TrainerSpec, image: Path, runtime: str, mounts: str) -> TrainerSpec:
    return dataclasses.replace(
        spec, container=str(image), container_runtime=runtime, container_mounts=mounts
    )


@pytest.mark.parametrize("runtime", PROGRAMS)
def test_a_training_grows_and_shrinks_in_containers(runtime: str, tmp_path: Path) -> None:
    _needs(runtime)
    image = host_image(tmp_path / "image")
    (tmp_path / "image" / "etc" / "os-release").write_text("an image of a test\n")
    with Site.open(tmp_path, n_nodes=2, policy=POLICY, options=()) as site:
        spec = trainer_spec(tmp_path / "t", LOOKING + SCALES, curve=SCALING)
        spec = _contained(spec, image, runtime, host_mounts())
        trainer = site.client.submit(spec).record.trainer_id
        site.trains_at(trainer, 2)
        job = site.server.client.submit(n_nodes=1, limit_s=60.0, duration_s=3.0)
        site.trains_at(trainer, 1)
        site.trains_at(trainer, 2)
        assert job
        lines = [n for n in site.log_text(trainer).splitlines() if n.startswith("SEES ")]
        assert {json.loads(line[5:])["os"] for line in lines} == {"an image of a test\n"}
        site.client.cancel(trainer, now=True)
        site.in_state(trainer, TrainerState.CANCELLED)
        wait_for(lambda: not _left_below(image), what="nothing runs in the image any more")


def _left_below(image: Path) -> list[str]:
    """Return the command lines of processes that name the image."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if str(image) in line and f"/{os.getpid()}/" not in str(file):
            found.append(line)
    return found


@pytest.mark.parametrize("runtime", PROGRAMS)
def test_dry_run_and_doctor_try_the_image(
    runtime: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _needs(runtime)
    image = host_image(tmp_path / "image")
    (tmp_path / "train.py").write_text(SHORT)
    monkeypatch.chdir(tmp_path)
    within = ["--container", str(image), "--container-runtime", runtime]
    mounts = ["--container-mounts", host_mounts()]
    asked = ["submit", "--dry-run", *within, "--interpreter", sys.executable]
    assert main([*asked, *mounts, "train.py"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert f"image {image} starts here" in said
    assert "imports torch" in said
    assert main([*asked, "train.py"]) == ExitCode.USAGE  # nothing is in the image
    assert "error BFT-1082: " in capsys.readouterr().err


@pytest.mark.slurm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("runtime", PROGRAMS)
def test_a_training_in_a_debian_on_slurm(
    runtime: str, debian: Path, slurm_cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    _needs(runtime)
    with daemon_on(slurm_cluster, tmp_path, POLICY) as daemon:
        spec = trainer_spec(tmp_path / "t", LOOKING + SHORT, epochs=2, n_min=2, n_max=2)
        spec = _contained(spec, debian, runtime, _mounts_of_debian())
        trainer = daemon.client.submit(spec).record.trainer_id
        wait_for(lambda: daemon.client.trainer(trainer).record.state.is_final, what="it has ended")
        record = daemon.client.trainer(trainer).record
        logs = "".join(Path(file.path).read_text() for file in daemon.client.logs(trainer))
        assert record.state is TrainerState.FINISHED, f"{record.reason}\n{logs}"
        (seen, *_) = [n for n in logs.splitlines() if n.startswith("SEES ")]
        assert DEBIAN in json.loads(seen[5:])["os"]
        assert f"bftrainer: container {debian} by {runtime}" in _agents_said(tmp_path)


def _agents_said(directory: Path) -> str:
    logs = directory.rglob("template-*.log")
    return "".join(file.read_text(errors="replace") for file in logs)
