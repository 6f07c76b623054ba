"""Three users train at once on a real Slurm, each as himself, and none can harm another."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bftrainer.model.errors import ExitCode
from bftrainer.model.trainer import TrainerState
from tests.integration.daemon_scripts import LIGHT
from tests.support.other_users import needs_root
from tests.support.shared_site import Person, SharedSite, shared_site
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, needs_root]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A trainer that trains."""

    person: Person
    trainer_id: str
    node: str
    worker_pid: int


@pytest.fixture(scope="module")
def site() -> Iterator[SharedSite]:
    with shared_site("bfta", "bftb", "bfte", n_nodes=3) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def trainings(site: SharedSite) -> list[Training]:
    """One trainer of each, all at once."""
    ids = [submit(person, "first") for person in site.people]
    return [training(site, p, i) for p, i in zip(site.people, ids, strict=True)]


def submit(person: Person, name: str, *more: str) -> str:
    script = person.writes("train.py", LIGHT)
    said = person.does(
        *("submit", "-J", name, "--runtime", "mpi", "--chdir", str(person.home)),
        *("--export", "SECRET=hunter2", *more, str(script), "--password", "hunter2"),
    )
    found = re.search(r"\bt[0-9]+\b", said)
    assert found, said
    return found[0]


def training(site: SharedSite, person: Person, trainer_id: str) -> Training:
    view = wait_for(
        lambda: v if (v := site.client.trainer(trainer_id)).observed_nodes else None,
        what=f"{person.name} trains",
        timeout_s=60,
    )
    pid = wait_for(lambda: _worker_pid(person, view.record.spec.name), what="its worker's log")
    return Training(
        person=person, trainer_id=trainer_id, node=view.observed_nodes[0], worker_pid=pid
    )


def _worker_pid(person: Person, name: str) -> int | None:
    logs = sorted((person.home / f"bft-{name}" / "logs").glob("*.log"))
    found = [int(pid) for log in logs for pid in re.findall(r"worker ([0-9]+)", log.read_text())]
    return found[-1] if found else None


def test_each_trains_as_himself_on_a_node_of_his_own(
    site: SharedSite, trainings: list[Training]
) -> None:
    assert {one.node for one in trainings} == set(site.cluster.config.node_names)
    for one in trainings:
        process = Path(f"/proc/{one.worker_pid}")
        assert process.stat().st_uid == one.person.account.pw_uid
        agent = Path(f"/proc/{_agent_of(one.worker_pid)}")
        assert agent.stat().st_uid == one.person.account.pw_uid
    jobs = site.cluster.command("squeue", "-h", "-o", "%u %P").stdout.splitlines()
    assert sorted(jobs) == sorted(f"{p.name} bf" for p in site.people)
    assert site.daemon is not None
    assert Path(f"/proc/{site.daemon.pid}").stat().st_uid == site.service.account.pw_uid


def _agent_of(pid: int) -> int:
    while b"trainers.agent" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def test_nobody_reads_the_files_of_another(site: SharedSite, trainings: list[Training]) -> None:
    alice, *_, eve = trainings
    (folder,) = (alice.person.home / ".bftrainer" / "pilots").glob("*/p*")
    assert not (folder / "agent.key").exists()  # read, and removed
    assert stat.S_IMODE((folder / "agent.json").stat().st_mode) == 0o600
    kept = alice.person.home / "bft-first"
    log = next((kept / "logs").glob("*.log"))
    wanted = (log, folder / "agent.json", f"/proc/{alice.worker_pid}/environ", site.state)
    for path in (*wanted, site.state / "journal.db", site.service.home / "daemon.log"):
        done = eve.person.runs("ls" if path == site.state else "cat", str(path))
        assert "Permission denied" in done.stderr, path
    assert alice.person.runs("cat", str(log)).is_ok


def test_nobody_signals_the_processes_of_another(trainings: list[Training]) -> None:
    alice, *_, eve = trainings
    for pid in (alice.worker_pid, _agent_of(alice.worker_pid)):
        done = eve.person.runs("/bin/kill", "-KILL", str(pid))
        assert "not permitted" in done.stderr
    assert Path(f"/proc/{alice.worker_pid}").exists()


_SUBMIT_AS = """
import sys
from pathlib import Path
from bftrainer.api.client import Client
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerSpec
spec = TrainerSpec(name="mine", user=sys.argv[2], script="/bin/true", cwd="/",
                   interpreter=sys.executable, runtime="mpi", checkpoint_dir="/tmp/none")
try:
    print(Client(Path(sys.argv[1])).submit(spec))
except BftError as error:
    print(error.code)
"""


def test_nobody_submits_or_changes_in_the_name_of_another(
    site: SharedSite, trainings: list[Training]
) -> None:
    alice, *_, eve = trainings
    said = eve.person.python_says(_SUBMIT_AS, str(site.socket), alice.person.name)
    assert said.stdout == "BFT-1005\n", said.stderr
    for words in (
        ("cancel", alice.trainer_id),
        ("cancel", "--now", alice.trainer_id),
        ("hold", alice.trainer_id),
        ("requeue", alice.trainer_id),
        ("update", "--nodes", "1:2", alice.trainer_id),
        ("logs", alice.trainer_id),
        ("explain", alice.trainer_id),
        ("down",),
    ):
        done = eve.person.says(*words)
        assert done.returncode == ExitCode.NOT_PERMITTED, (words, done.stdout, done.stderr)
        assert "BFT-1005" in done.stderr
    assert site.client.trainer(alice.trainer_id).record.state is TrainerState.RUNNING


def test_a_daemon_for_one_user_says_so_to_others(site: SharedSite) -> None:
    eve, place = site.people[-1], site.root / "one"
    place.mkdir(mode=0o755)
    owner = site.service.account
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(place / "daemon.sock"))
        for path, mode in ((place, 0o755), (place / "daemon.sock", 0o600)):
            os.chown(path, owner.pw_uid, owner.pw_gid)
            path.chmod(mode)
        done = eve.says("status", "--socket", str(place / "daemon.sock"))
    assert "BFT-1101" in done.stderr
    assert "run_as: submitter" in done.stderr


def test_others_see_names_and_sizes_but_no_secrets(trainings: list[Training]) -> None:
    alice, *_, eve = trainings
    shown = eve.person.does("status", alice.trainer_id, "--json")
    assert alice.person.name in shown
    assert alice.node in shown
    for secret in ("hunter2", str(alice.person.home), "train.py"):
        assert secret not in shown
        assert secret in alice.person.does("status", alice.trainer_id, "--json")
    everything = eve.person.does("status", "--json") + eve.person.does("nodes", "--json")
    assert str(alice.person.home) not in everything
    own = alice.person.does("logs", alice.trainer_id)  # read with the caller's rights
    assert f"worker {alice.worker_pid}" in own


_ASK_HELPER = """
import json, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
request = {"do": "cancel", "user": sys.argv[2], "jobs": [sys.argv[3]], "how": "force"}
try:
    connection.sendall(json.dumps(request).encode())
    connection.shutdown(socket.SHUT_WR)
except OSError:
    pass
print(connection.recv(65536).decode())
"""


def test_the_helper_and_slurm_serve_nobody_for_another(
    site: SharedSite, trainings: list[Training]
) -> None:
    alice, *_, eve = trainings
    job = site.cluster.command("squeue", "-h", "-u", alice.person.name, "-o", "%i").stdout.strip()
    said = eve.person.python_says(_ASK_HELPER, str(site.helper_socket), alice.person.name, job)
    assert "BFT-1526" in said.stdout, said.stderr
    assert "denied" in eve.person.runs("scancel", job).stderr
    assert Path(f"/proc/{alice.worker_pid}").exists()


_KNOCK = """
import json, socket, sys, zmq
from zmq.utils.monitor import recv_monitor_message
for place in sys.argv[2:]:
    host, _, port = place.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(bytes(range(256)) * 8)
config = json.load(open(sys.argv[1]))  # of a pilot of ours
stranger = zmq.Context().socket(zmq.DEALER)
stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
stranger.curve_serverkey = config["daemon_public_key"].encode()
events = stranger.get_monitor_socket()
stranger.connect(config["daemon_endpoint"])
ends = {zmq.EVENT_HANDSHAKE_FAILED_AUTH: "refused", zmq.EVENT_HANDSHAKE_SUCCEEDED: "let in"}
said = ""
while not said and events.poll(20_000):
    said = ends.get(recv_monitor_message(events)["event"], "")
print(said, flush=True)
stranger.close(0)
"""


def test_nobody_is_heard_at_the_ports_of_another(
    site: SharedSite, trainings: list[Training]
) -> None:
    alice, *_, eve = trainings
    assert site.daemon is not None
    agent = _agent_of(alice.worker_pid)
    ports = {port for pid in (agent, alice.worker_pid, site.daemon.pid) for port in _heard_at(pid)}
    assert len(ports) >= 2  # the agent's and the daemon's
    (config,) = (eve.person.home / ".bftrainer" / "pilots").glob("*/p*/agent.json")
    before = site.client.trainer(alice.trainer_id).record.progress
    said = eve.person.python_says(_KNOCK, str(config), *sorted(ports))
    assert said.stdout == "refused\n", said.stderr
    wait_for(
        lambda: site.client.trainer(alice.trainer_id).record.progress.step > before.step,
        what="she trains on",
    )
    assert site.client.trainer(alice.trainer_id).record.failures == 0


def _heard_at(pid: int) -> set[str]:
    """Addresses and TCP ports at which a process listens, proc(5)."""
    held = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]
    return {f"{socket.inet_ntoa(bytes.fromhex(h)[::-1])}:{int(p, 16)}" for h, p in found}


def test_jobs_named_like_pilots_deceive_nobody(site: SharedSite, trainings: list[Training]) -> None:
    alice, *_, eve = trainings
    queue = ("squeue", "-h", "-p", "bf", "-o", "%i %j", "-u")
    job, name = site.cluster.command(*queue, alice.person.name).stdout.split()
    # Of names with the separators of our formats none reads another user's job differently.
    odd = f"x\x1e{job}\x1fmine\x1f"
    forged = [
        eve.person.runs(
            *("sbatch", "--parsable", "-p", "bf", "-J", called, "-t", "1", "-o", "/dev/null"),
            "--wrap=sleep 60",
        )
        for called in (name, "p999999999", odd)
    ]
    assert all(one.is_ok for one in forged), forged
    looks = site.client.status().polling
    assert looks is not None
    wait_for(
        lambda: (p := site.client.status().polling) and p.looks >= looks.looks + 3,
        what="some polls",
    )
    assert site.client.status().observed == "present"
    assert site.client.trainer(alice.trainer_id).observed_nodes == (alice.node,)
    assert Path(f"/proc/{alice.worker_pid}").exists()
    eve.person.runs("scancel", *(one.stdout.strip() for one in forged))


def test_a_node_moves_to_another_user_by_a_pilot_of_his(
    site: SharedSite, trainings: list[Training]
) -> None:
    alice, bob, _ = trainings
    wish = submit(bob.person, "second")
    # Her agent does not answer: only the helper can end the pilot, as she.
    os.kill(_agent_of(alice.worker_pid), signal.SIGSTOP)
    alice.person.does("cancel", "--now", alice.trainer_id)
    second = training(site, bob.person, wish)
    assert second.node == alice.node
    assert Path(f"/proc/{second.worker_pid}").stat().st_uid == bob.person.account.pw_uid
    owners = site.cluster.command("squeue", "-h", "-p", "bf", "-t", "R", "-o", "%u").stdout
    assert alice.person.name not in owners
    bob.person.does("cancel", "--now", wish)
    wait_for(
        lambda: len(site.cluster.command("squeue", "-h", "-p", "bf").stdout.splitlines()) == 2,
        what="the node is given back",
    )


@pytest.mark.long
def test_a_user_whose_pilots_are_refused_is_told_and_holds_up_nobody(site: SharedSite) -> None:
    alice, bob, _ = site.people
    place, kept = bob.home / ".bftrainer", bob.home / "kept"
    if place.exists():  # he had pilots before
        place.rename(kept)
    place.symlink_to(alice.home)
    refused = submit(bob, "third")
    told = wait_for(
        lambda: next((s for s in site.client.explain(refused).sentences if "~/.bft" in s), ""),
        what="he is told",
    )
    assert "the folder of pilots in the home of" in told
    again = training(site, alice, submit(alice, "again"))
    assert not list(alice.home.glob("[0-9a-f]*[0-9a-f]"))  # nothing was made in hers
    bob.does("cancel", refused)
    alice.does("cancel", "--now", again.trainer_id)
    place.unlink()
    if kept.exists():
        kept.rename(place)


@pytest.mark.long
def test_a_daemon_that_comes_back_knows_whose_pilots_there_are(
    site: SharedSite, trainings: list[Training]
) -> None:
    *_, eve = trainings
    before = site.client.trainer(eve.trainer_id)
    site.stop()
    site.start()
    view = wait_for(
        lambda: v if (v := site.client.trainer(eve.trainer_id)).observed_nodes else None,
        what="its workers are found",
    )
    assert view.observed_nodes == before.observed_nodes
    assert view.record.rescales == before.record.rescales
    assert Path(f"/proc/{eve.worker_pid}").exists()
