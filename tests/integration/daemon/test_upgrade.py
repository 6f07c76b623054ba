"""An upgrade in place, and back, while a trainer trains: the daemon of another release takes over.

The other release is a commit of this repository, laid out as a package would be and replaced as a
package manager does: agents and workers that run keep what they have imported, and import the rest
from what is there then.
"""

from __future__ import annotations

import configparser
import getpass
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.local.adapter import create
from bftrainer.fleet.generations.rescale_log import RescaleRecord, RescaleStep, copied
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.journal import Journal
from bftrainer.lab.demo.local_site import DemoSite
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.canonical import encode, from_plain
from bftrainer.model.trainer import Divergence, TrainerSpec, TrainerState
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.e2e import train_digits
from tests.e2e.records import committed_samples, read_records
from tests.integration.slurm_fixtures import daemon_on, running_cluster
from tests.support.generations import offer
from tests.support.site import Site
from tests.support.waiting import wait_for
from tests.unit.fleet.test_machine_records import STEPS, machine_of

ROOT = Path(__file__).parents[3]
PACKAGES = ("bftrainer", "milp", "trainers", "slurm_plugins", "lsf_adapters")
BEFORE = "8848d7dd940c9e78"  # records: the last commit before daemons served many users
LAST = "59d15af0f9658a16"  # daemons: the last one before modules moved to the twelve rooms
EPOCHS = 40
POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
"""


class Installed:
    """A directory with one of two releases."""

    def __init__(self, base: Path, before: bytes) -> None:
        self.path, self._releases = base / "app", {"old": base / "old", "new": base / "new"}
        with zipfile.ZipFile(io.BytesIO(before)) as archive:
            archive.extractall(self._releases["old"])
        for package in PACKAGES:
            shutil.copytree(
                ROOT / package,
                self._releases["new"] / package,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        shutil.copy(ROOT / "setup.cfg", self._releases["new"])
        for release in self._releases.values():  # plug-ins are found by the metadata
            read = configparser.ConfigParser()
            read.read(release / "setup.cfg")
            points = (f"[{k}]{v}\n" for k, v in read["options.entry_points"].items())
            about = release / "bftrainer-0.dist-info"
            about.mkdir()
            (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bftrainer\nVersion: 0\n")
            (about / "entry_points.txt").write_text("".join(points))

    def put(self, release: str) -> None:
        """Replace what is there at once."""
        link = self.path.with_name("next")
        link.symlink_to(self._releases[release])
        link.rename(self.path)


@pytest.fixture(params=[LAST])
def installed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Installed:
    git = (shutil.which("git") or "git", "-C", str(ROOT))
    argv = [*git, "archive", "--format=zip", request.param, "setup.cfg", *PACKAGES]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip(f"no history here: {done.stderr.decode(errors='replace').strip()}")
    made = Installed(tmp_path, done.stdout)
    made.put("old")
    monkeypatch.setenv("PYTHONPATH", str(made.path))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # not what happens to be in the working directory
    return made


class SlurmSite(Site):
    """Trainers on a real Slurm, whose interface no release of ours changes."""

    def __init__(self, sidecar: DaemonProcess, cluster: SlurmTestCluster) -> None:
        DemoSite.__init__(self, sidecar)
        self.cluster = cluster

    def has_a_job(self) -> str:
        """Start an ordinary job of one node; return its id."""
        job_id = self.cluster.submit(n_nodes=1, limit_s=600, duration_s=600)
        wait_for(lambda: self.cluster.started_s(job_id) is not None, what="it runs")
        return job_id

    def next_generation(self, trainer_id: str, known: int, size: int) -> int:
        """Wait for a generation of this size after a known one; return its number."""

        def found() -> int:
            progress = self.view(trainer_id).record.progress
            return progress.generation if progress.size == size else known

        wait_for(lambda: found() > known, what=f"a generation of {size} after {known}")
        return found()


@pytest.fixture
def site(installed: Installed, tmp_path: Path) -> Iterator[SlurmSite]:
    del installed
    with (
        running_cluster(n_nodes=3, scheduler_parameters=FAST_CYCLE) as cluster,
        daemon_on(cluster, tmp_path, POLICY) as sidecar,
    ):
        yield SlurmSite(sidecar, cluster)


def digits(out: Path) -> TrainerSpec:
    out.mkdir()
    return TrainerSpec(
        name="digits",
        user=getpass.getuser(),
        script=train_digits.__file__,
        args=("--out", str(out), "--epochs", str(EPOCHS), "--sample-ms", "8"),
        cwd=str(out),
        interpreter=sys.executable,
        n_min=1,
        n_max=3,
        epochs=EPOCHS,
        checkpoint_dir=str(out / "checkpoints"),
    )


# What the journal's records consist of, in the release that runs it.
_FIELDS = """
import dataclasses, json, typing
from bftrainer.journal.projection import PilotRecord
from bftrainer.model.decision import DecisionRecord
from bftrainer.model.trainer import TrainerRecord

found = {}

def visit(hint):
    for argument in typing.get_args(hint):
        visit(argument)
    name = getattr(hint, "__qualname__", "")
    if dataclasses.is_dataclass(hint) and name not in found:
        names = [field.name for field in dataclasses.fields(hint)]
        allowed = [sorted(getattr(hint, kind, ())) for kind in ("ADDED", "REMOVED")]
        found[name] = names, *allowed
        for inner in typing.get_type_hints(hint).values():
            visit(inner)

for record in (TrainerRecord, PilotRecord, DecisionRecord):
    visit(record)
print(json.dumps(found))
"""


@pytest.mark.parametrize("installed", [BEFORE, LAST], indirect=True)
def test_each_field_of_a_record_that_the_release_before_lacks_is_left_out_while_unused(
    installed: Installed,
) -> None:
    """So it reads what this one wrote, unless something new was used; and this one reads it."""

    def records(release: str) -> dict[str, list[list[str]]]:
        installed.put(release)
        argv = [sys.executable, "-c", _FIELDS]
        said = subprocess.run(argv, capture_output=True, check=True, timeout=60)
        found: dict[str, list[list[str]]] = json.loads(said.stdout)
        return found

    before, now, wrong = records("old"), records("new"), list[str]()
    both = sorted(before.keys() & now.keys())
    for name in both:
        had, (has, added, removed) = before[name][0], now[name]
        wrong += [f"{name}.{f} is not in its ADDED" for f in set(has) - set(had) - set(added)]
        wrong += [f"{name}.{f} is not in its REMOVED" for f in set(had) - set(has) - set(removed)]
    assert wrong == []
    assert len(both) > 20


@pytest.mark.long
def test_daemons_of_two_releases_take_turns_and_no_worker_notices(
    site: SlurmSite, installed: Installed, tmp_path: Path
) -> None:
    sidecar, ordinary = site.sidecar, site.has_a_job()
    trainer = site.client.submit(digits(tmp_path / "digits")).record.trainer_id
    site.trains_at(trainer, 2)
    generation = site.view(trainer).record.progress.generation
    for release in ("new", "old", "new"):
        site.trains_on(trainer)
        sidecar.stop()
        installed.put(release)
        sidecar.start()
        wait_for(
            lambda: site.view(trainer).record.state is TrainerState.RUNNING, what="it is adopted"
        )
        site.trains_on(trainer)
        assert site.view(trainer).record.progress.generation == generation, "nobody was restarted"
        if release == "new" and ordinary:  # an agent of the new release joins
            site.cluster.cancel(ordinary)
            ordinary = ""
            generation = site.next_generation(trainer, generation, 3)
        elif release == "old":  # and leaves by order of the old one
            ordinary = site.has_a_job()
            generation = site.next_generation(trainer, generation, 2)
    (tmp_path / "digits" / "hurry").touch()
    site.in_state(trainer, TrainerState.FINISHED)
    epochs = committed_samples(read_records(tmp_path / "digits"))
    assert {epoch: (len(used), set(used.values())) for epoch, used in epochs.items()} == {
        epoch: (train_digits.N_TRAIN, {1}) for epoch in range(EPOCHS)
    }
    assert not list(sidecar.entries("worker-failed"))
    said = sidecar.log.read_text()
    assert "Traceback" not in said
    assert "cannot be read" not in said
    assert "BFT-1028" not in said


_REPEATS = """
import json, sys
from bftrainer.actuate.rescale_log import RescaleRecord, repeat
from bftrainer.canonical import decode, encode
for text in json.loads(sys.stdin.read()):
    record = decode(text, RescaleRecord)
    print(encode(record).decode() == text and all(step.is_equal for step in repeat(record)))
"""
NEW = ("sizes", "passed_over", "PassedOver", "Remarked", "Diverged")  # that ``LAST`` lacks


@pytest.mark.long
def test_the_release_before_reads_and_repeats_rescales_that_use_nothing_new(
    installed: Installed,
) -> None:
    """Failed before when the journal had the machine's parts as such: "is not a known field"."""
    texts: list[str] = []
    for recorded in STEPS:
        machine, step = copied(machine_of(recorded["machine"])), recorded["step"]
        record = RescaleRecord(
            trainer_id="t1",
            machine=machine,
            workers=tuple(machine.crew.workers),
            steps=(from_plain(step, RescaleStep),),
        )
        text = encode(record).decode()
        if not any(f'"{word}"' in text for word in NEW):
            texts.append(text)
    argv = [sys.executable, "-c", _REPEATS]
    done = subprocess.run(
        argv,
        input=json.dumps(texts),
        capture_output=True,
        check=True,
        timeout=120,
        cwd=installed.path,
        text=True,
    )
    assert done.stdout.split() == ["True"] * len(texts)
    assert len(texts) == 51


_TAKES_OVER = """
import dataclasses, sys
from bftrainer.journal import Journal
with Journal.open(sys.argv[1], clock=lambda: 2.0) as journal:
    journal.verify()
    journal.begin_incarnation()
    [record, other] = journal.trainers()
    print(record.state, record.reason)
    journal.note("moved", {}, trainers=[dataclasses.replace(other, reason="Changed.")])
    journal.checkpoint(0.0)
"""


@pytest.mark.long
def test_the_release_before_reads_trainers_with_what_it_lacks_and_keeps_it(
    installed: Installed, tmp_path: Path
) -> None:
    path, divergence = tmp_path / "journal.db", Divergence(step=7, cause="BFT-1435: NaN.")
    with Journal.open(path, clock=lambda: 1.0) as journal:
        journal.begin_incarnation()
        specs = [TrainerSpec(name=name, user="ada", script="s") for name in ("one", "two")]
        wanted = [
            replace(journal.submit(spec, 1.0), saved_step=5, diverged=divergence) for spec in specs
        ]
        journal.note("diverged", {}, trainers=wanted)
        assert list(journal.trainers()) == wanted
    argv = [sys.executable, "-c", _TAKES_OVER, str(path)]
    said = subprocess.run(
        argv, capture_output=True, check=True, timeout=120, cwd=installed.path, text=True
    )
    assert said.stdout == "queued Waits for its first nodes.\n", said.stderr
    with Journal.open(path, clock=lambda: 3.0) as journal:
        journal.verify()
        changed = replace(wanted[1], saved_step=None, diverged=None, reason="Changed.")
        assert list(journal.trainers()) == [wanted[0], changed]


_CRAFTED = ("root", "0", "", "ada\nroot", "../root", "'; DROP TABLE trainers; --", "%s {0}", "ada")
_WRITER = """
import json, sys
from bftrainer.journal import Journal, PilotRecord
from bftrainer.model.trainer import TrainerSpec
with Journal.open(sys.argv[1], clock=lambda: 1.0) as journal:
    journal.begin_incarnation()
    for name in json.loads(sys.argv[2]):
        journal.submit(TrainerSpec(name=name, user=name, script=name, checkpoint_dir=name), 1.0)
        [pilot_id] = journal.next_pilot_ids(1)
        pilot = PilotRecord(
            pilot_id=pilot_id, node="n1", job_id=None, public_key="k", requested_s=1.0,
            time_limit_s=60.0, owner=name,
        )
        journal.append("launch", {}, pilots=[pilot])
"""


@pytest.mark.long
def test_crafted_records_of_the_release_before_serve_and_run_as_their_users_alone(
    installed: Installed, tmp_path: Path
) -> None:
    """Failed before for "": such a pilot served the trainers of every user."""
    path = tmp_path / "journal.db"
    argv = [sys.executable, "-c", _WRITER, str(path), json.dumps(_CRAFTED)]
    subprocess.run(argv, check=True, timeout=120, cwd=installed.path)
    with Journal.open(path, clock=lambda: 2.0) as journal:
        assert journal.verify() > 2 * len(_CRAFTED)
        assert [one.spec.user for one in journal.trainers()] == list(_CRAFTED)
        book = PilotBook(
            journal, create({"socket": "/none"}), "bft", lambda: 2.0, as_submitter=True
        )
        serves = [replace(offer("n1"), user=book.user_of(pilot_id)) for pilot_id in book.pilots]
        for owner, node in zip(_CRAFTED, serves, strict=True):
            assert [user for user in _CRAFTED if node.serves(user)] == ([owner] if owner else [])
