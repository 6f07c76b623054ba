"""The script that users' submissions run, by real shells and users, and the daemon's reader."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bftrainer.batch.announcer import Announcement
from bftrainer.model.errors import BatchSystemError
from lsf_adapters.notifications import esub
from lsf_adapters.notifications.esub import SubmissionFiles
from lsf_adapters.notifications.script import (
    FIRST_LINE,
    MOST_BYTES,
    PLACE_MODE,
    install,
    make_place,
)
from tests.support.other_users import NEIGHBOUR, STRANGER, needs_root
from tests.support.waiting import wait_for

pytestmark = needs_root

PILOTS = "bf"
SHELLS = [name for name in ("dash", "bash") if shutil.which(name)]
HOSTILE = """\
LSB_SUB_JOB_NAME="$(touch @/harm)`touch @/harm`"
LSB_SUB_QUEUE="normal"
LSB_SUB_RES_REQ="select[a=='\\"%s%n'] $(touch @/harm) \\\\"
LSB_SUB_DEPEND_COND="'; touch @/harm; '
LSB_SUB_QUEUE="other"
touch @/harm
"
LSB_SUB_NUM_PROCESSORS=3
"""


@pytest.fixture
def site() -> Iterator[Path]:
    """A directory that others may enter, unlike pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="bft-esub-"))
    made.chmod(0o755)
    make_place(made / "place")
    for name in ("esub.bftrainer", "epsub.bftrainer"):
        install(made, made / "place", name)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def files(site: Path) -> Iterator[SubmissionFiles]:
    opened = SubmissionFiles(
        site / "place", PILOTS, slots_of=lambda: {"n1": 2, "n2": 2}, every_s=0.01
    )
    yield opened
    opened.close()


def submits(
    site: Path,
    asked: str = 'LSB_SUB_QUEUE="normal"\n',
    *,
    uid: int = STRANGER,
    interpreter: str = "sh",
    name: str = "esub.bftrainer",
    **variables: str,
) -> None:
    """Run the script as bsub does, with the job's script on standard input."""
    parameters = site / f"parameters.{uid}"
    parameters.write_text(asked.replace("@", str(site)))
    script = site / "job"
    script.write_text("the job's script\n")
    with script.open() as job:
        said = subprocess.run(
            [shutil.which(interpreter) or interpreter, site / name],
            env={"LSB_SUB_PARM_FILE": str(parameters), "LSB_SUB_ABORT_VALUE": "97", **variables},
            stdin=job,
            capture_output=True,
            text=True,
            user=uid,
            group=uid,
            extra_groups=[],
            timeout=60,
            check=False,
        )
        assert os.lseek(job.fileno(), 0, os.SEEK_CUR) == 0, "bsub still has to read it"
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def read(files: SubmissionFiles, timeout_s: float = 20.0) -> list[Announcement]:
    found: list[Announcement] = []

    def is_there() -> bool:
        ready, _, _ = select.select([files], [], [], timeout_s)
        assert ready, "nobody was woken"
        found.extend(files.read())
        return bool(found)

    wait_for(is_there, timeout_s=timeout_s, interval_s=0.0)
    return found


def nothing_follows(files: SubmissionFiles, site: Path) -> None:
    """Nothing was announced before a later submission of somebody else."""
    submits(site, "LSB_SUB_NUM_PROCESSORS=4\n", uid=NEIGHBOUR)
    users = [said.job.user for said in read(files) if said.job]
    assert users == [f"user {NEIGHBOUR}"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_submission_is_announced_for_its_user(
    site: Path, files: SubmissionFiles, shell: str
) -> None:
    submits(site, 'LSB_SUB_QUEUE="normal"\nLSB_SUB_NUM_PROCESSORS=3\n', interpreter=shell)
    ((found),) = read(files)
    assert found.job is not None
    assert (found.partition, found.job.user) == ("normal", f"user {STRANGER}")
    assert (found.job.n_nodes, found.job.is_entitled) == (2, True)
    assert found.job.submit_s == int((site / "place" / f"u{STRANGER}").stat().st_ctime)
    submits(site, interpreter=shell)
    assert len(read(files)) == 1, "the next one, too"
    assert sorted(p.name for p in (site / "place").iterdir()) == [f".d{STRANGER}", f"u{STRANGER}"]


@pytest.mark.parametrize("shell", SHELLS)
def test_hostile_parameters_are_data(site: Path, files: SubmissionFiles, shell: str) -> None:
    submits(site, HOSTILE, interpreter=shell)
    ((found),) = read(files)
    assert found.job is not None
    assert (found.job.partitions, found.job.n_nodes) == (("normal",), 2)
    assert not (site / "harm").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_file_stays_small(site: Path, files: SubmissionFiles, shell: str) -> None:
    long = 'LSB_SUB_RES_REQ="' + "x" * 100_000 + '"\n'
    for _ in range(3):
        submits(site, 'LSB_SUB_QUEUE="q"\n' + long * 5, interpreter=shell)
        ((found),) = read(files)
        assert found.partition == "q"
    size = (site / "place" / f"u{STRANGER}").stat().st_size
    assert size <= MOST_BYTES + len(FIRST_LINE) + 2


@pytest.mark.parametrize("what", ["bmod", "refused", "no parameters", "parameters are a pipe"])
def test_what_is_no_submission_is_not_announced(
    site: Path, files: SubmissionFiles, what: str
) -> None:
    match what:
        case "bmod":
            submits(site, "LSB_SUB_MODIFY=Y\nLSB_SUB_NUM_PROCESSORS=2\n")
        case "refused":
            submits(site, name="epsub.bftrainer", LSB_SUB_JOB_ID="-1")
        case "no parameters":
            submits(site, LSB_SUB_PARM_FILE="/none")
        case _:
            os.mkfifo(site / "pipe", 0o666)
            submits(site, LSB_SUB_PARM_FILE=str(site / "pipe"))
    nothing_follows(files, site)


def test_epsub_announces_what_was_accepted(site: Path, files: SubmissionFiles) -> None:
    submits(site, name="epsub.bftrainer", LSB_SUB_JOB_ID="17")
    assert len(read(files)) == 1


def test_our_own_jobs_are_no_news(site: Path, files: SubmissionFiles) -> None:
    submits(site, f'LSB_SUB_QUEUE="{PILOTS}"\n')
    nothing_follows(files, site)


def in_the_way(place: Path, kind: str) -> None:
    """What one user puts where another's file or directory is to be."""
    for name in (f"u{STRANGER}", f".d{STRANGER}"):
        match kind:
            case "pipe":
                os.mkfifo(place / name, 0o666)
            case "link":
                (place / name).symlink_to(place.parent / "secret")
            case "directory":
                (place / name).mkdir()
                (place / name).chmod(0o777)
            case _:
                (place / name).write_text(f"{FIRST_LINE}\n")
        os.lchown(place / name, NEIGHBOUR, NEIGHBOUR)


@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "file"])
def test_what_is_in_the_way_harms_nobody(site: Path, files: SubmissionFiles, kind: str) -> None:
    """The script is not held up, writes nowhere else, and nobody speaks for another."""
    secret = site / "secret"
    secret.write_text("secret")
    os.chown(secret, STRANGER, STRANGER)
    in_the_way(site / "place", kind)
    submits(site)
    nothing_follows(files, site)
    assert secret.read_text() == "secret"


def test_a_link_to_the_users_own_directory_is_not_followed(site: Path) -> None:
    home = site / "home"
    home.mkdir()
    os.chown(home, STRANGER, STRANGER)
    (site / "place" / f".d{STRANGER}").symlink_to(home)
    submits(site)
    submits(site, uid=NEIGHBOUR)
    wait_for((site / "place" / f"u{NEIGHBOUR}").exists)
    assert list(home.iterdir()) == []


def test_nobody_speaks_for_another(site: Path, files: SubmissionFiles) -> None:
    forged = site / "place" / f"u{NEIGHBOUR}"
    forged.write_text(f"{FIRST_LINE}\n")
    os.chown(forged, STRANGER, STRANGER)
    submits(site)
    users = [said.job.user for said in read(files) if said.job]
    assert users == [f"user {STRANGER}"]


@pytest.mark.parametrize("age", ["there before", "moved in late"])
def test_what_is_old_is_not_announced(
    site: Path, age: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submits(site)
    wait_for((site / "place" / f"u{STRANGER}").exists)
    if age == "moved in late":
        (site / "place" / f"u{STRANGER}").rename(site / "kept")
    with closing(SubmissionFiles(site / "place", PILOTS, every_s=0.01)) as files:
        if age == "there before":
            nothing_follows(files, site)
            return
        monkeypatch.setattr(esub, "FRESH_S", -1.0)
        (site / "kept").rename(site / "place" / f"u{STRANGER}")
        wait_for(lambda: files._number == 1)
        submits(site, uid=NEIGHBOUR)
        wait_for(lambda: files._number == 2, what="the first was looked at")
        assert files.read() == ()


def test_a_crowd_of_files_costs_only_so_much(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(esub, "MOST_FILES", 10)
    monkeypatch.setattr(esub, "MOST_WAITING", 4)
    with closing(SubmissionFiles(site / "place", PILOTS, every_s=0.01)) as files:
        for uid in range(100, 150):
            file = site / f"u{uid}"
            file.write_text(f"{FIRST_LINE}\n")
            os.chown(file, uid, -1)
            file.rename(site / "place" / file.name)
        wait_for(lambda: len(files._known) == 10 and len(files._waiting) == 4)
        assert len(read(files)) <= 4


@pytest.mark.parametrize(
    ("spoil", "code", "why"),
    [
        (lambda place: place.chmod(0o777), "BFT-1214", "not sticky"),
        (lambda place: os.chown(place, NEIGHBOUR, -1), "BFT-1214", f"belongs to user {NEIGHBOUR}"),
        (shutil.rmtree, "BFT-1213", "only polls"),
    ],
    ids=["not sticky", "somebody else's", "gone"],
)
def test_a_directory_that_is_not_believed(
    site: Path, files: SubmissionFiles, spoil: Callable[[Path], object], code: str, why: str
) -> None:
    assert (site / "place").stat().st_mode & 0o7777 == PLACE_MODE
    spoil(site / "place")
    with pytest.raises(BatchSystemError, match=why) as raised:
        SubmissionFiles(site / "place", PILOTS)
    assert raised.value.code == code
    with pytest.raises(BatchSystemError, match=why) as raised:
        wait_for(lambda: read(files))
    assert raised.value.code == code


def test_nothing_is_left_after_closing(site: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    files = SubmissionFiles(site / "place", PILOTS, every_s=0.01)
    submits(site)
    read(files)
    files.close()
    after = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    assert after == before
