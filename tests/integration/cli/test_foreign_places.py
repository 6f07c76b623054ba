"""Directories that others can write to, or have closed: nothing there runs, is followed or hangs.

Real daemons, agents and workers; where a directory has to be closed, a real user.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.model.trainer import CheckpointContract, TrainerSpec, TrainerState
from tests.integration.daemon_scripts import trainer_spec
from tests.integration.study_fixtures import POLICY, StudyUser
from tests.support.accounts import accounts, as_user, python_for_all, scratch
from tests.support.site import Site, opened_site
from tests.support.waiting import wait_for

BFTRAINER = str(Path(sys.executable).with_name("bftrainer"))
NOBODY = 65534
PLANTED = ("click", "json", "random", "select", "selectors", "signal", "socket", "threading")
PROGRAM = 'print("BFT epoch=1 value=0.5", flush=True)\n'
by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes users and their files")


site = opened_site(n_nodes=2, policy=POLICY)


def plant(directory: Path) -> Callable[[], list[str]]:
    """Put modules with names of others there; return what says which have run."""
    ran = directory / "ran"
    for name in PLANTED:
        text = f"open({str(ran)!r}, 'a').write('{name} ')\nraise SystemExit(3)\n"
        (directory / f"{name}.py").write_text(text)
    return lambda: ran.read_text().split() if ran.exists() else []


@pytest.mark.long
def test_a_detached_study_imports_nothing_of_the_caller_s_directory(site: Site) -> None:
    user = StudyUser(site, site.base / "detached", PROGRAM)
    submit = {"runtime": "command", "interpreter": sys.executable}
    user.write("s", rule={"name": "none", "trials": 1, "most": 1}, submit=submit)
    (user.home / "scripts").mkdir()
    (user.home / "train.py").rename(user.home / "scripts" / "train.py")
    which_ran = plant(user.home)
    # What a user's name of a socket begins from is the directory where it was given.
    socket = os.path.relpath(user.env.pop("BFTRAINER_SOCKET"), user.home)
    words = ("study", "run", "--detach", "--socket", socket, "s.yaml", "scripts/train.py")
    done = process.run((BFTRAINER, *words), timeout_s=120, env=user.env, cwd=user.home)
    assert done.is_ok, done.stderr
    summary = user.home / "s.study" / "summary.json"
    wait_for(
        lambda: summary.exists() and json.loads(summary.read_text())["state"] == "over",
        what="the study is over",
    )
    assert which_ran() == []


def test_processes_of_a_pool_import_nothing_of_the_working_directory(tmp_path: Path) -> None:
    which_ran = plant(tmp_path)
    code = (
        "from bftrainer.lab.parallel import play_each\n"
        "if __name__ == '__main__':\n"
        "    print(play_each(abs, [-1, -2], processes=2))\n"
    )
    place = tmp_path / "scripts"
    place.mkdir()
    (place / "pool.py").write_text(code)
    argv = (sys.executable, str(place / "pool.py"))
    done = process.run(argv, timeout_s=120, cwd=tmp_path)
    assert done.stdout == "{-1: 1, -2: 2}\n", done.stderr
    assert which_ran() == []


def test_a_solver_with_a_limit_imports_nothing_of_the_working_directory(tmp_path: Path) -> None:
    """Passing before, too: the solver's child was the one that had -P."""
    which_ran = plant(tmp_path)
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if p]\n"
        "from bftrainer.lab.solvers.runner import ChildRunner\n"
        "r = ChildRunner().run('{}', time_limit_s=30.0, memory_limit_bytes=1 << 31)\n"
        "print(bool(r.failure or r.stdout))\n"
    )
    place = tmp_path / "scripts"
    place.mkdir()
    (place / "solve.py").write_text(code)
    done = process.run((sys.executable, str(place / "solve.py")), timeout_s=120, cwd=tmp_path)
    assert done.stdout == "True\n", done.stderr
    assert which_ran() == []


TRAINS = """\
import time, torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(80, 2), torch.zeros(80, 1))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=4), epochs=1)
for epoch in run.epochs():
    for a, b in run.batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(a), b).backward()
        run.step()
        time.sleep(0.05)
"""


@pytest.mark.long
def test_try_imports_nothing_of_the_caller_s_directory(tmp_path: Path) -> None:
    """Its batch system, its daemon, its agents, its templates and its workers."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(TRAINS)
    which_ran = plant(tmp_path)
    words = ("try", "--nodes", "2", "--epochs", "1", "scripts/train.py")
    done = process.run((BFTRAINER, *words), timeout_s=300, cwd=tmp_path)
    assert done.is_ok, done.stderr
    assert which_ran() == []


def spec_of(runtime: str, directory: Path) -> TrainerSpec:
    """Return a trainer that would be over at once."""
    found = trainer_spec(directory, PROGRAM, n_max=1, runtime=runtime, epochs=None)
    if runtime != "command":
        return found
    program = (found.interpreter, (found.script,))
    contract = CheckpointContract()
    return replace(found, interpreter="", script=program[0], args=program[1], contract=contract)


def fill(logs: Path, put: Callable[[Path], object]) -> None:
    """Put something where the next trainers' logs would be."""
    logs.mkdir(parents=True)
    for trainer in range(1, 40):
        for generation in (1, 2, 3):
            for worker in (1, 2, 3, 4):
                put(logs / f"t{trainer}-{generation}-{worker}.log")


@pytest.mark.parametrize("runtime", ["torch", pytest.param("command", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_log_s_place_that_is_taken_fails_the_trainer_with_its_reason(
    site: Site, kind: str, runtime: str
) -> None:
    directory = site.base / f"{kind}-{runtime}"
    precious = site.base / f"precious-{kind}-{runtime}"
    precious.write_text("mine")
    put = os.mkfifo if kind == "pipe" else lambda path: path.symlink_to(precious)
    spec = spec_of(runtime, directory)
    fill(Path(spec.checkpoint_dir) / "logs", put)
    trainer = site.client.submit(spec).record.trainer_id
    record = site.in_state(trainer, TrainerState.FAILED).record
    why = {"pipe": "it is not a regular file", "link": "it is a symbolic link"}
    assert "BFT-1411" in record.reason
    assert why[kind] in record.reason
    assert precious.read_text() == "mine"


@by_root
@pytest.mark.parametrize("runtime", [pytest.param("torch", marks=pytest.mark.long), "command"])
@pytest.mark.parametrize(
    "what", ["the directory", pytest.param("its logs", marks=pytest.mark.long)]
)
def test_workers_refuse_another_user_s_directory(site: Site, what: str, runtime: str) -> None:
    directory = site.base / f"foreign-{runtime}-{what.rsplit(maxsplit=1)[-1]}"
    spec = spec_of(runtime, directory)
    logs = Path(spec.checkpoint_dir) / "logs"
    logs.mkdir(parents=True)
    os.chown(logs if what == "its logs" else logs.parent, NOBODY, -1)
    trainer = site.client.submit(spec).record.trainer_id
    record = site.in_state(trainer, TrainerState.FAILED).record
    assert "BFT-1411" in record.reason
    assert f"it belongs to another user (uid {NOBODY})" in record.reason
    assert list(logs.iterdir()) == []
    trusting = replace(spec, environment=(*spec.environment, ("BFT_ANY_OWNER", "1")))
    if runtime == "command":
        trainer = site.client.submit(trusting).record.trainer_id
        site.in_state(trainer, TrainerState.FINISHED)


@by_root
def test_submit_and_trials_refuse_another_user_s_directory(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "bft-train").mkdir()
    os.chown(tmp_path / "bft-train", NOBODY, -1)
    argv = (BFTRAINER, "submit", "--dry-run", "--runtime", "command", "--interpreter")
    done = process.run((*argv, sys.executable, "train.py"), timeout_s=60, cwd=tmp_path)
    assert "error BFT-1014" in done.stderr
    assert f"it belongs to another user (uid {NOBODY})" in done.stderr
    done = process.run(
        (*argv, sys.executable, "--any-owner", "train.py"), timeout_s=60, cwd=tmp_path
    )
    assert done.is_ok, done.stderr


CLOSED = "CLOSED"
VERBS = (
    *((*("submit", "--dry-run"), *words) for words in (
        ("--interpreter", f"{CLOSED}/x/python", "train.py"),
        ("--venv", f"{CLOSED}/x", "train.py"),
        ("--preamble", f"{CLOSED}/x/p.sh", "train.py"),
        ("--curve", f"{CLOSED}/x/c.json", "train.py"),
        ("--chdir", f"{CLOSED}/x", "--runtime", "command", "--interpreter", "python3", "train.py"),
        ("--checkpoint-dir", f"{CLOSED}/x", "--runtime", "command", "--", "/bin/true"),
        (f"{CLOSED}/x/train.py",),
        ("--runtime", "command", "--", f"{CLOSED}/x/program"),
    )),
    ("try", f"{CLOSED}/x/train.py"),
    ("try", "--interpreter", f"{CLOSED}/x/python", "train.py"),
    ("profile", f"{CLOSED}/x/train.py"),
    ("profile", "--table", f"{CLOSED}/x/t.json", "train.py"),
    ("profile", "--interpreter", f"{CLOSED}/x/python", "train.py"),
    ("profile", "allreduce", "--interpreter", f"{CLOSED}/x/python"),
    *(("study", *words) for words in (
        ("run", f"{CLOSED}/x/s.yaml", "train.py"),
        ("run", "--dir", f"{CLOSED}/x", "s.yaml", "train.py"),
        ("run", "--plan", f"{CLOSED}/x", "s.yaml", "train.py"),
        ("run", "s.yaml", f"{CLOSED}/x/train.py"),
        ("run", f"{CLOSED}/x.study"),
        *((verb, f"{CLOSED}/x.study") for verb in ("status", "best", "export", "plot", "stop")),
        ("deadline", "--deadline", "1h", "--history", f"{CLOSED}/x", "s.yaml"),
        ("plan", "--deadline", "1h", "--price", "1/h", f"{CLOSED}/x.yaml"),
    )),
    ("solve", f"{CLOSED}/x/p.json"),
    ("policy", "check", f"{CLOSED}/x/p.yaml"),
    ("policy", "diff", f"{CLOSED}/x/p.yaml", f"{CLOSED}/x/q.yaml"),
    ("simulate", "--trace", f"{CLOSED}/x/t.npz"),
    ("simulate", "--workload", f"{CLOSED}/x/w.json"),
    ("compare", "--trace", f"{CLOSED}/x/t.npz", "--arena", "idle", "--seeds", "1"),
    ("trace", "info", f"{CLOSED}/x/t.npz"),
    ("trace", "convert", f"{CLOSED}/x/t.npz", "out.npz"),
    ("trace", "generate", "--out", f"{CLOSED}/x/t.npz"),
    ("whatif", "--trace", f"{CLOSED}/x/t.npz"),
    ("whatif", "--sacct", f"{CLOSED}/x/t.txt"),
    ("journal", "verify", f"{CLOSED}/x/journal.db"),
    ("replay", f"{CLOSED}/x/journal.db"),
    ("account", "--journal", f"{CLOSED}/x/journal.db"),
    ("reproduce", "bftrainer", "--trace", f"{CLOSED}/x/t.npz"),
    ("status", "--socket", f"{CLOSED}/x/daemon.sock"),
    ("daemon", "--state-dir", f"{CLOSED}/x"),
    ("up", "--preamble", f"{CLOSED}/x/p.sh"),
    ("doctor", "--policy", f"{CLOSED}/x/p.yaml"),
)  # fmt: skip


@pytest.fixture(scope="module")
def user() -> Iterator[tuple[str, str, Path, Path]]:
    """A user, their Python, their home, and a directory that is closed to them."""
    homes, root = scratch("bft-homes-"), scratch("bft-closed-", "/run")
    try:
        with accounts(homes, "closed") as (name,):
            python = python_for_all(root / "venv")
            home, closed = homes / name, root / "closed"
            (closed / "x").mkdir(parents=True)
            closed.chmod(0o700)
            (home / "train.py").write_text(PROGRAM)
            document = {
                "parameters": {"lr": {"type": "float", "low": 0.1, "high": 0.3}},
                "rule": {"name": "sha", "trials": 2, "least": 1, "most": 2, "eta": 2},
                "submit": {"runtime": "command", "interpreter": "python3"},
            }
            (home / "s.yaml").write_text(json.dumps(document))
            yield name, python, home, closed
    finally:
        shutil.rmtree(root)
        shutil.rmtree(homes)


@by_root
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=" ".join(words), marks=[pytest.mark.long] if n % 6 else [])
        for n, words in enumerate(VERBS)
    ],
)
def test_a_closed_directory_has_a_code(
    words: tuple[str, ...], user: tuple[str, str, Path, Path]
) -> None:
    name, python, home, closed = user
    told = [word.replace(CLOSED, str(closed)) for word in words]
    done = process.run(
        as_user(name, python, "-P", "-m", "bftrainer", *told),
        timeout_s=120,
        env={
            "PATH": f"{Path(python).parent}:/usr/bin:/bin",
            "HOME": str(home),
            "BFTRAINER_SOCKET": str(home / "no-daemon"),
        },
        cwd=home,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode != 0
    assert "error BFT-" in done.stderr
    assert " option " not in done.stderr, "the words above are not a verb's any more"
