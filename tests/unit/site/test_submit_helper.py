"""The privileged helper: what it refuses, and what it does as whom."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch import process
from bftrainer.site.submit import helper
from tests.support import submit_helper
from tests.support.accounts import accounts, as_user, scratch
from tests.support.hung import hung
from tests.support.other_users import needs_root
from tests.support.processes import below, is_running
from tests.support.waiting import wait_for

OPTIONS = [
    *("--parsable", "--job-name=p000017", "--partition=bf", "--nodes=1", "--nodelist=n1"),
    *("--exclusive", "--mem=0", "--time=5", "--deadline=now+420", "--no-requeue", "--export=ALL"),
    *("--chdir=/", "--input=/dev/null", "--open-mode=append", "--gres=gpu:2", "--account=physics"),
    "--propagate=NONE",
]
SUBMIT: dict[str, Any] = {
    "do": "submit",
    "user": "alice",
    "pilot": "p000017",
    "site": "0123456789ab",
    "options": OPTIONS,
    "files": {"agent.json": "{}", "agent.key": "secret"},
    "grace_s": 0,
}
CANCEL: dict[str, Any] = {"do": "cancel", "user": "alice", "jobs": ["7", "8"], "how": "ask"}
# It says as whom it runs, and with what.
SBATCH = """\
#!/bin/sh
id -u; id -G; umask; pwd; ulimit -c; ulimit -v
sed -n 's/^Cap[PEA][rfm][mfb]:[^0]*//p' /proc/self/status
echo --; env -u PWD -u OLDPWD -u SHLVL -u _ | sort
echo --; printf '%s\\n' "$@"
echo --; cat
"""
SQUEUE = """\
#!/bin/sh
echo "7 $USER bf p000017"; echo "8 $USER batch p000018"; echo "9 $USER bf mine"
echo "10 root bf p000019"; echo "11 $USER bf p000020.0123abcd"
"""


def test_the_herald_passes_the_notice_on_and_leaves_nothing() -> None:
    """What it leaves holds the step's output: Slurm then waits 60 s until the node is free."""
    script = 'srun() { shift 7; exec "$@"; }\n' + helper.HERALD + "echo $!; exec cat"
    with subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        herald = int(agent.stdout.readline())
        (sleeper,) = wait_for(lambda: below(herald), what="it waits")
        os.kill(herald, signal.SIGTERM)
        assert agent.stdout.read() == "", "nobody holds its output"
        assert agent.wait() == -signal.SIGUSR1
        wait_for(lambda: not is_running(sleeper), what="it has ended")


@pytest.mark.parametrize(
    "changed",
    [
        {"do": "run"},
        {"user": "-rf"},
        {"user": "a b"},
        {"user": 1000},
        {"user": "x" * 100},
        {"pilot": "../x"},
        {"pilot": "p000018"},
        {"site": "../../etc"},
        {"site": ""},
        {"options": [*OPTIONS, "--uid=0"]},
        {"options": [*OPTIONS, "--wrap=id"]},
        {"options": [*OPTIONS, "--qos=a b"]},
        {"options": [*OPTIONS, "--qos=a\n"]},
        {"options": [*OPTIONS, "--partition=batch"]},
        {"options": [*OPTIONS, "--output=/etc/passwd"]},
        {"options": [*OPTIONS, "--export=LD_PRELOAD=/x"]},
        {"options": [*OPTIONS, "script.sh"]},
        {"options": OPTIONS[:-1]},
        {"options": "--nodes=1"},
        {"files": {"agent.json": "{}"}},
        {"files": {"agent.json": "{}", "../agent.key": ""}},
        {"files": {"agent.json": "x" * 40_000, "agent.key": ""}},
        {"grace_s": -1},
        {"grace_s": float("nan")},
        {"grace_s": True},
        {"grace_s": "60"},
        {"more": 1},
    ],
)
def test_what_is_not_exactly_a_pilot_is_refused(changed: dict[str, Any]) -> None:
    assert helper.parse(json.dumps(SUBMIT).encode()).pilot == "p000017"
    with pytest.raises(helper.NotAllowed) as refused:
        helper.parse(json.dumps({**SUBMIT, **changed}).encode())
    assert refused.value.code == "BFT-1527"


@pytest.mark.parametrize(
    "changed",
    [{"jobs": []}, {"jobs": ["7 8"]}, {"jobs": ["-u"]}, {"jobs": ["7"] * 201}, {"how": "-f"}],
)
def test_what_is_not_a_list_of_jobs_is_refused(changed: dict[str, Any]) -> None:
    assert helper.parse(json.dumps(CANCEL).encode()).jobs == ("7", "8")
    with pytest.raises(helper.NotAllowed, match="malformed"):
        helper.parse(json.dumps({**CANCEL, **changed}).encode())


FORGET: dict[str, Any] = {name: SUBMIT[name] for name in ("user", "pilot", "site")}
FORGET["do"] = "forget"


@pytest.mark.parametrize(
    "changed", [{"pilot": "p*"}, {"pilot": ""}, {"site": ".."}, {"files": {}}, {"user": "-"}]
)
def test_what_is_not_a_pilot_to_forget_is_refused(changed: dict[str, Any]) -> None:
    assert helper.parse(json.dumps(FORGET).encode()).do == "forget"
    with pytest.raises(helper.NotAllowed, match="malformed"):
        helper.parse(json.dumps({**FORGET, **changed}).encode())


PART = ("--ntasks=1", "--cpus-per-task=8", "--mem=900M", "--gres=gpu:1g.10gb:2")
_WHOLE = ("--exclusive", "--mem=0", "--gres=gpu:2")


def _of_a_part(*size: str) -> bytes:
    others = [option for option in OPTIONS if option not in _WHOLE]
    return json.dumps({**SUBMIT, "options": [*others, *size]}).encode()


def test_pilots_may_have_parts_of_nodes() -> None:
    assert set(PART) <= set(helper.parse(_of_a_part(*PART)).options)
    helper.parse(_of_a_part(*(word for word in PART if not word.startswith("--mem"))))
    helper.parse(_of_a_part(*PART, "--gres-flags=disable-binding"))


@pytest.mark.parametrize(
    "size",
    [
        (),
        PART[:3],
        PART[3:],
        ("--exclusive", *PART),
        ("--ntasks=2", *PART[1:]),
        (*PART[:3], "--gres=gpu:a,gpu:2"),
        (*PART, "--gres-flags=enforce-binding"),
    ],
)
def test_what_is_neither_a_node_nor_gpus_with_their_cpus_is_refused(size: tuple[str, ...]) -> None:
    with pytest.raises(helper.NotAllowed):
        helper.parse(_of_a_part(*size))


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"[" * 100_000, b'{"do": []}', b"\xff", b"7"])
def test_no_json_object_is_no_request(raw: bytes) -> None:
    with pytest.raises(helper.NotAllowed, match="malformed"):
        helper.parse(raw)


class Site:
    """A helper's configuration with programs that only say what they were given."""

    def __init__(self, root: Path, alice: str) -> None:
        self.root, self.alice = root, alice
        self.home = Path(pwd.getpwnam(alice).pw_dir)
        programs = {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": '#!/bin/sh\necho "$@"\n'}
        for name, text in programs.items():
            (root / name).write_text(text)
            (root / name).chmod(0o755)
        self.settings: dict[str, Any] = {
            "daemon_user": "root",  # who tests
            "partition": "bf",
            "agent": ["/opt/x/python", "-I", "-m", "trainers.agent"],
            "users": "any",
            "environment": {"SLURM_CONF": "/etc/slurm.conf", "PATH": "/usr/bin:/bin"},
            **{name: str(root / name) for name in programs},
        }

    def asked(self, request: dict[str, Any] | bytes, **changed: Any) -> dict[str, Any]:
        config = submit_helper.write_config(
            self.root / "helper.json", **{**self.settings, **changed}
        )
        if isinstance(request, dict) and request["user"] == "alice":
            request = {**request, "user": self.alice}
        return submit_helper.asked(config, request)

    def refused(self, request: dict[str, Any] | bytes, code: str, **changed: Any) -> str:
        answer = self.asked(request, **changed)
        assert answer["error"]["code"] == code, answer
        assert not self.pilots()
        return str(answer["error"]["cause"])

    def pilots(self) -> list[Path]:
        return sorted((self.home / ".bftrainer" / "pilots" / SUBMIT["site"]).glob("p*"))


@pytest.fixture(scope="module")
def alice() -> Iterator[str]:
    homes = scratch("bft-homes-")
    try:
        with accounts(homes, "bfta") as (name,):
            yield name
    finally:
        shutil.rmtree(homes)


@pytest.fixture
def site(alice: str) -> Iterator[Site]:
    root = scratch("bft-helper-")
    made = Site(root, alice)
    try:
        yield made
    finally:
        shutil.rmtree(root)
        shutil.rmtree(made.home / ".bftrainer", ignore_errors=True)
        (made.home / ".bftrainer").unlink(missing_ok=True)
        made.home.chmod(0o700)


@needs_root
def test_a_pilot_is_submitted_with_the_rights_of_its_user_and_no_others(site: Site) -> None:
    answer = site.asked({**SUBMIT, "grace_s": 60})
    assert answer["status"] == 0, answer
    account = pwd.getpwnam(site.alice)
    who, variables, options, script = answer["stdout"].split("--\n", 3)
    groups = os.getgrouplist(site.alice, account.pw_gid)
    no_capabilities = ["0" * 16] * 3  # permitted, effective, ambient
    identity = [
        str(account.pw_uid),
        *map(str, groups),
        "0077",
        "/",
        "0",
        str(helper.MOST_MEMORY // 1024),
    ]
    assert who.split() == [*identity, *no_capabilities]
    assert variables.splitlines() == [
        "BFT_GRACE_S=60",
        f"HOME={site.home}",
        f"LOGNAME={site.alice}",
        "PATH=/usr/bin:/bin",
        "SLURM_CONF=/etc/slurm.conf",
        f"USER={site.alice}",
    ]
    (folder,) = site.pilots()
    assert options.splitlines() == [*OPTIONS, f"--output={folder}/agent.log"]
    agent = f"exec /opt/x/python -I -m trainers.agent --config {folder}/agent.json\n"
    assert script == f"#!/bin/sh\n{helper.HERALD}{agent}"
    for path in (folder, *folder.parents[:3]):
        info = path.stat()
        assert (info.st_uid, stat.S_IMODE(info.st_mode)) == (account.pw_uid, 0o700), path
        assert info.st_gid == account.pw_gid
    assert (folder / "agent.key").read_text() == "secret"
    assert {stat.S_IMODE(f.stat().st_mode) for f in folder.iterdir()} == {0o600}


@needs_root
def test_nothing_of_the_environment_is_used(site: Site) -> None:
    """Passes: Python is isolated, programs have paths, and commands get the variables of root."""
    evil, ran = site.root / "evil", site.root / "ran"
    evil.mkdir()
    for name in ("id", "sort", "env", "sed", "sh", "json.py", "sitecustomize.py", "profile"):
        text = f"open({str(ran)!r}, 'w')\n" if name.endswith(".py") else f"#!/bin/sh\n>{ran}\n"
        (evil / name).write_text(text)
        (evil / name).chmod(0o755)
    hostile = {
        **dict.fromkeys(("PATH", "PYTHONPATH", "PYTHONHOME"), str(evil)),
        **dict.fromkeys(("BASH_ENV", "ENV", "PYTHONSTARTUP"), str(evil / "profile")),
        "LC_ALL": "tr_TR.UTF-8",
        "LANG": "C",
        "SLURM_CONF": "/evil",
        "SBATCH_WRAP": "id",
        "HOME": str(evil),
        "SUDO_UID": "0",
        "IFS": "/",
    }
    config = submit_helper.write_config(site.root / "helper.json", **site.settings)
    request = json.dumps({**SUBMIT, "user": site.alice})
    done = process.run(submit_helper.argv(config), timeout_s=30, env=hostile, stdin=request)
    variables = json.loads(done.stdout)["stdout"].split("--\n")[1].splitlines()
    assert [one.partition("=")[0] for one in variables] == [
        *("HOME", "LOGNAME", "PATH", "SLURM_CONF", "USER"),
    ]
    assert {f"HOME={site.home}", "PATH=/usr/bin:/bin", "SLURM_CONF=/etc/slurm.conf"} < {*variables}
    assert not ran.exists()
    assert len(site.pilots()) == 1


@needs_root
def test_files_are_opened_with_all_groups_of_the_user(site: Site) -> None:
    """Passes: without ``initgroups`` a folder of a project would be closed (CVE-2023-49938)."""
    account, project = pwd.getpwnam(site.alice), site.root / "project"
    with accounts(site.root, "bftg") as (owner,):
        process.run(("/usr/sbin/usermod", "-aG", owner, site.alice), timeout_s=30)
        group = grp.getgrnam(owner)
        assert group.gr_mem == [site.alice]
        (project / site.alice).mkdir(parents=True)
        os.chown(project / site.alice, account.pw_uid, account.pw_gid)
        os.chown(project, 0, group.gr_gid)
        project.chmod(0o750)
        assert site.asked(SUBMIT, place=f"{project}/%u")["status"] == 0
        project.chmod(0o700)
        site.refused(SUBMIT, "BFT-1529", place=f"{project}/%u")
    (folder,) = (project / site.alice / SUBMIT["site"]).iterdir()
    assert (folder.stat().st_uid, folder.stat().st_gid) == (account.pw_uid, account.pw_gid)


@needs_root
def test_a_second_pilot_of_the_same_number_gets_a_folder_of_its_own(site: Site) -> None:
    assert [site.asked(SUBMIT)["status"] for _ in range(2)] == [0, 0]
    assert len(site.pilots()) == 2


@needs_root
def test_a_refused_pilot_leaves_no_secrets(site: Site) -> None:
    (site.root / "sbatch").write_text("#!/bin/sh\necho 'Invalid account' >&2; exit 1\n")
    answer = site.asked(SUBMIT)
    assert (answer["status"], answer["stderr"]) == (1, "Invalid account\n")
    assert not site.pilots()


@needs_root
def test_a_user_who_ends_what_acts_for_him_gets_no_answer(site: Site) -> None:
    (site.root / "sbatch").write_text("#!/bin/sh\nkill -KILL $PPID\n")
    assert site.asked(SUBMIT)["error"]["code"] == "BFT-1530"


# ---- what sbatch prints, which its user may write -----------------------------------------------


@needs_root
def test_the_job_id_is_the_answer_whoever_keeps_the_outputs_open(site: Site) -> None:
    """Seen failing before: BFT-1529 after 28 s, although the job ran."""
    leaves = "setsid sh -c 'echo $$ >\"$HOME/pid\"; exec sleep 600' &"  # killed only if it is ours
    there = 'until [ -s "$HOME/pid" ]; do sleep 0.01; done'
    for before, after in ((f"{leaves} {there}", ""), ("", "exec sleep 600")):
        (site.root / "sbatch").write_text(f"#!/bin/sh\n{before}\necho '42;bf'\n{after}\n")
        try:
            answer = site.asked(SUBMIT)
        finally:
            _end(site.home / "pid")
        assert answer == {"status": 0, "stdout": "42;bf\n", "stderr": ""}
    assert len(site.pilots()) == 2


def _end(pid_file: Path) -> None:
    if pid_file.exists():
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        pid_file.unlink()


@needs_root
@pytest.mark.parametrize(
    ("sbatch", "why"),
    [
        ("yes no", "printed more than"),
        ("yes 42 >&2", "printed more than"),
        ("tr '\\0' x </dev/zero", "printed more than"),
        ("exec sleep 600", "took longer than"),
        ("kill -KILL $$", "ended by a signal"),
        ("sh -c 'kill -KILL $$'", "ended by a signal"),
        ("kill -KILL $PPID", "without an answer"),
    ],
)
def test_a_pilot_that_may_have_a_job_keeps_its_files(
    site: Site, monkeypatch: pytest.MonkeyPatch, sbatch: str, why: str
) -> None:
    """Seen failing before: 2.8 GB in the helper, BFT-1529, or "refused" without the files."""
    (site.root / "sbatch").write_text(f"#!/bin/sh\n{sbatch}\n")
    monkeypatch.setattr(submit_helper, "PROGRAM", str(submit_helper.hasty(site.root / "hasty.py")))
    answer = site.asked(SUBMIT)
    assert answer["error"]["code"] == "BFT-1530", answer
    assert why in answer["error"]["cause"]
    assert len(site.pilots()) == 1
    assert site.asked(FORGET)["status"] == 0
    assert not site.pilots()


@needs_root
@pytest.mark.parametrize("request_of", [SUBMIT, FORGET])
def test_a_home_that_hangs_delays_the_answer_by_the_limit_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch, request_of: dict[str, Any]
) -> None:
    """Seen failing before: what hung held the connection, which did not end with the answer."""
    monkeypatch.setattr(submit_helper, "PROGRAM", str(submit_helper.hasty(site.root / "hasty.py")))
    with hung(site.home):
        answer = site.asked(request_of)
    assert answer["error"]["code"] == "BFT-1530"
    assert "no end of it" in answer["error"]["cause"]


@needs_root
@pytest.mark.parametrize("sign", helper.UNHEARD)
def test_a_request_that_slurm_may_have_heard_keeps_its_files(site: Site, sign: str) -> None:
    """Seen failing before: the job found no configuration."""
    (site.root / "sbatch").write_text(f"#!/bin/sh\necho '{sign}' >&2; exit 1\n")
    assert site.asked(SUBMIT)["status"] == 1
    assert len(site.pilots()) == 1


@needs_root
def test_long_words_of_a_refusal_are_cut(site: Site) -> None:
    (site.root / "sbatch").write_text("#!/bin/sh\nyes no | head -c 99999 >&2; exit 1\n")
    answer = site.asked(SUBMIT)
    assert (answer["status"], len(answer["stderr"])) == (1, helper.MOST_TROUBLE)
    assert not site.pilots()


@needs_root
@pytest.mark.parametrize("sbatch", ["/nowhere/sbatch", "/etc/passwd"])
def test_what_did_not_begin_leaves_no_secrets(site: Site, sbatch: str) -> None:
    """Seen failing before: key and configuration stayed."""
    site.refused(SUBMIT, "BFT-1529", sbatch=sbatch)


@needs_root
def test_further_options_of_sbatch_are_those_that_root_allows(site: Site) -> None:
    own = "--comment=preempt me; $(id)"  # one word, whatever is in it
    asked = {**SUBMIT, "options": [*OPTIONS, own]}
    site.refused(asked, "BFT-1527")
    site.refused(asked, "BFT-1527", options=["--comment=another"])
    answer = site.asked(asked, options=[own])
    assert answer["status"] == 0, answer
    assert own in answer["stdout"].split("--\n", 3)[2].splitlines()
    assert site.asked(asked, options=own)["error"]["code"] == "BFT-1525"  # a text is no list


@needs_root
def test_only_the_folders_of_that_pilot_are_forgotten(site: Site) -> None:
    other = {**SUBMIT, "pilot": "p000018", "options": [*OPTIONS]}
    other["options"][1] = "--job-name=p000018"
    assert [site.asked(one)["status"] for one in (SUBMIT, other)] == [0, 0]
    assert site.asked(FORGET)["status"] == 0
    (left,) = site.pilots()
    assert left.name.startswith("p000018-")


@needs_root
@pytest.mark.parametrize("part", [b"", json.dumps(SUBMIT).encode()[:50]])
def test_a_peer_that_is_gone_is_no_traceback(site: Site, part: bytes) -> None:
    """Seen failing before: BrokenPipeError in the system's log."""
    config = submit_helper.write_config(site.root / "helper.json", **site.settings)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(part)
        ours.close()
        argv, out = submit_helper.argv(config), site.root / "stderr"
        with out.open("wb") as stderr:
            child = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=stderr
            )
        assert child.wait(60) == 0
    assert out.read_text() == ""


# ---- whom root allows -----------------------------------------------------------------------


@needs_root
def test_only_users_whom_root_allows_have_pilots(site: Site) -> None:
    for user in ("root", "daemon", "nobody-there"):
        site.refused({**SUBMIT, "user": user}, "BFT-1528")
    site.refused(SUBMIT, "BFT-1528", users=["bob"])
    site.refused(SUBMIT, "BFT-1528", denied=[site.alice])
    site.refused(SUBMIT, "BFT-1528", min_uid=4_000_000)
    assert site.asked(SUBMIT, users=[], groups=[site.alice])["status"] == 0


@pytest.mark.parametrize(
    ("name", "uid", "is_service"),
    [
        ("slurm", 1001, True),
        ("nobody", 4_000, True),
        ("munge", 2_000, True),
        ("ada", 1_000, False),
        ("ada", 59_999, False),
        ("ada", 60_000, True),
        ("ada", 64_030, True),
        ("ada", 64_999, True),
        ("ada", 65_000, True),
        ("ada", 65_519, True),
        ("ada", 65_520, False),
        ("ada", 65_534, True),
        ("ada", 65_535, True),
        ("ada", 65_536, False),  # of a directory, above UID_MAX
        ("ada", 524_288, False),  # systemd takes it for a container if nobody has it
        ("ada", 2_000_199_999, False),  # the last that sssd computes
        ("ada", 0x7FFE_0000, True),
        ("ada", 0xFFFF_FFFE, True),
    ],
)
def test_accounts_of_services_are_denied_unless_they_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, uid: int, *, is_service: bool
) -> None:
    """Seen failing before: slurm (64030) and nobody had pilots."""
    account = pwd.struct_passwd((name, "x", uid, 2_000, "", f"/home/{name}", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwnam", lambda _: account)
    monkeypatch.setattr(os, "getgrouplist", lambda _name, _gid: [0])
    ways: list[tuple[bool, dict[str, Any]]] = [
        (not is_service, {"users": None}),
        (not is_service, {"groups": frozenset({"root"})}),
        (True, {"users": frozenset({name})}),
        (True, {"users": None, "allowed": frozenset({name})}),
        (False, {"users": None, "allowed": frozenset({name}), "denied": frozenset({name})}),
    ]
    request = helper.Request(do="cancel", user=name)
    for may, said in ways:
        config = helper.Config(daemon_uid=1, partition="bf", agent=("/x",), **said)
        if may:
            assert helper.account_of(request, config) == account
        else:
            with pytest.raises(helper.NotAllowed, match="Nothing may run as"):
                helper.account_of(request, config)


# (What a user's account has, whether "any" means it.)
LOG_IN = [
    ({"shell": "/bin/bash"}, True),
    ({"shell": ""}, True),  # passwd(5): that is /bin/sh
    ({"shell": "/usr/local/bin/nologin-notice"}, True),
    ({"shell": "/usr/sbin/nologin"}, False),
    ({"shell": "/sbin/nologin"}, False),
    ({"shell": "/bin/false"}, False),
    ({"shell": "/run/current-system/sw/bin/nologin"}, False),
    ({"uid": 165_535}, False),
    ({"uid": 100_000}, False),
    ({"uid": 165_536}, True),
    ({"uid": 99_999}, True),
    ({"uid": 700_000}, True),  # its own
    ({"uid": 900_000}, True),  # likewise, by number
    ({"uid": 70_000}, True),  # of a directory
]
SUBUID = """\
# of this host
bob:100000:65536
ada:700000:10
900000:900000:10
eve:::
mallory:99999999999999999999:1

carl:70001:0
"""


@pytest.mark.parametrize(("has", "logs_in"), LOG_IN)
def test_any_means_all_who_log_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has: dict[str, Any], *, logs_in: bool
) -> None:
    """Seen failing before: a uid of a container (165535) and one with nologin had pilots."""
    shell, uid = has.get("shell", "/bin/sh"), has.get("uid", 1_500)
    account = pwd.struct_passwd(("ada", "x", uid, 2_000, "", "/home/ada", shell))
    monkeypatch.setattr(pwd, "getpwnam", lambda _: account)
    monkeypatch.setattr(os, "getgrouplist", lambda _name, _gid: [0])
    monkeypatch.setattr(helper, "SUBUID", tmp_path / "subuid")
    (tmp_path / "subuid").write_text(SUBUID)
    ways: list[tuple[bool, dict[str, Any]]] = [
        (logs_in, {"users": None}),
        (logs_in, {"users": None, "groups": frozenset({"others"})}),
        (True, {"users": None, "allowed": frozenset({"ada"})}),
        (True, {"users": None, "groups": frozenset({"root"})}),
        (True, {"groups": frozenset({"root"})}),
        (True, {"users": frozenset({"ada"})}),
    ]
    request = helper.Request(do="cancel", user="ada")
    for may, said in ways:
        config = helper.Config(daemon_uid=1, partition="bf", agent=("/x",), **said)
        if may:
            assert helper.account_of(request, config) == account
        else:
            with pytest.raises(helper.NotAllowed, match=r"its (shell|number)"):
                helper.account_of(request, config)


def test_numbers_of_containers_that_cannot_be_read_are_no_permission(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    account = pwd.struct_passwd(("ada", "x", 1500, 2_000, "", "/home/ada", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwnam", lambda _: account)
    request = helper.Request(do="cancel", user="ada")
    config = helper.Config(daemon_uid=1, partition="bf", agent=("/x",), users=None)
    monkeypatch.setattr(helper, "SUBUID", tmp_path / "none")
    assert helper.account_of(request, config) == account
    monkeypatch.setattr(helper, "SUBUID", tmp_path)  # a directory
    with pytest.raises(helper.NotAllowed, match="cannot be read"):
        helper.account_of(request, config)


@pytest.mark.parametrize("home", ["/", "", "//", "home", "/home/../etc", "/home/a\nb"])
def test_a_home_that_is_none_is_refused(home: str) -> None:
    """Seen failing before: a home of / was a ValueError (BFT-1530)."""
    account = pwd.struct_passwd(("ada", "x", 1000, 1000, "", home, "/bin/sh"))
    with pytest.raises(helper.NotAllowed) as refused:
        helper.make_directory(
            helper.parse(json.dumps(SUBMIT).encode()), helper.Config.place, account
        )
    assert refused.value.code == "BFT-1529"


@needs_root
def test_pilots_are_submitted_to_their_partition_only(site: Site) -> None:
    assert "bf2" in site.refused(SUBMIT, "BFT-1527", partition="bf2")


@needs_root
def test_links_and_open_folders_of_the_user_are_refused(site: Site) -> None:
    elsewhere = site.root / "elsewhere"
    elsewhere.mkdir(mode=0o777)
    elsewhere.chmod(0o777)
    (site.home / ".bftrainer").symlink_to(elsewhere)
    site.refused(SUBMIT, "BFT-1529")
    assert not list(elsewhere.iterdir())
    (site.home / ".bftrainer").unlink()
    site.home.chmod(0o770)
    assert "alone to write" in site.refused(SUBMIT, "BFT-1529")
    # Where root names a place for all, each user has a folder of his own in it.
    site.refused(SUBMIT, "BFT-1529", place=f"{elsewhere}/%u")


@needs_root
def test_only_pilots_of_the_user_are_cancelled(site: Site) -> None:
    jobs = [str(number) for number in range(7, 12)]
    answer = site.asked({**CANCEL, "jobs": jobs})
    assert answer == {"status": 0, "stdout": "-b -s TERM 7 11\n", "stderr": ""}
    assert site.asked({**CANCEL, "jobs": ["8", "9", "10"]})["stdout"] == ""
    assert site.asked({**CANCEL, "jobs": ["7"], "how": "force"})["stdout"] == "-f 7\n"


@needs_root
def test_a_configuration_that_others_could_write_is_refused(site: Site, alice: str) -> None:
    path = site.root / "helper.json"
    site.asked(SUBMIT)
    shutil.rmtree(site.home / ".bftrainer")
    account = pwd.getpwnam(alice)
    path.chmod(0o664)
    assert submit_helper.asked(path, SUBMIT)["error"]["code"] == "BFT-1525"
    path.chmod(0o644)
    (site.root / "link.json").symlink_to(path)
    link = submit_helper.asked(site.root / "link.json", SUBMIT)
    assert link["error"]["code"] == "BFT-1525"
    os.chown(site.root, account.pw_uid, account.pw_gid)
    assert submit_helper.asked(path, SUBMIT)["error"]["code"] == "BFT-1525"
    os.chown(site.root, 0, 0)
    assert submit_helper.asked(path, SUBMIT, "more")["error"]["code"] == "BFT-1525"
    assert not site.pilots()


@needs_root
@pytest.mark.parametrize(
    "changed",
    [
        {"daemon_user": "nobody-there"},
        {"users": "all"},
        {"agent": []},
        {"agent": "python"},
        {"sbatch": "sbatch"},
        {"min_uid": 0},
        {"place": "/tmp"},
        {"partition": "b f"},
        {"more": "x"},
    ],
)
def test_a_configuration_with_a_mistake_is_refused(site: Site, changed: dict[str, Any]) -> None:
    site.refused(SUBMIT, "BFT-1525", **changed)


@needs_root
def test_nobody_but_the_daemon_is_served(site: Site, alice: str) -> None:
    assert "User 0" in site.refused(SUBMIT, "BFT-1526", daemon_user=alice)
    config = submit_helper.write_config(site.root / "helper.json", **site.settings)
    words = submit_helper.argv(config)
    alone = process.run(words, timeout_s=30, env={}, stdin=json.dumps(SUBMIT))
    assert json.loads(alone.stdout)["error"]["code"] == "BFT-1526"
    by_sudo = process.run(words, timeout_s=30, env={"SUDO_UID": "0"}, stdin=json.dumps(CANCEL))
    assert json.loads(by_sudo.stdout)["error"]["code"] == "BFT-1528"  # there is no alice


@needs_root
def test_without_root_or_isolation_it_does_nothing(site: Site, alice: str) -> None:
    config = submit_helper.write_config(site.root / "helper.json", **site.settings)
    program = shutil.copyfile(submit_helper.PROGRAM, site.root / "helper")  # of one file
    request = json.dumps({**SUBMIT, "user": alice})
    words = ("/usr/bin/python3", "-IS", str(program), str(config))
    for argv in (as_user(alice, *words), (words[0], *words[2:])):
        done = process.run(argv, timeout_s=30, env={"SUDO_UID": "0"}, stdin=request)
        assert json.loads(done.stdout)["error"]["code"] == "BFT-1525", done.stderr
    assert not site.pilots()
    done = process.run(words, timeout_s=30, env={"SUDO_UID": "0"}, stdin=request)
    assert json.loads(done.stdout)["status"] == 0, done.stderr


@needs_root
@pytest.mark.skipif(shutil.which("sudo") is None, reason="sudo is not installed")
def test_sudo_starts_it_for_the_daemon_alone(site: Site, alice: str) -> None:
    request = json.dumps({**SUBMIT, "user": alice})
    with accounts(site.root, "bftd", is_system=True) as (daemon,):
        settings = {**site.settings, "daemon_user": daemon}
        config = submit_helper.write_config(site.root / "helper.json", **settings)
        words = ("/usr/bin/python3", "-IS", submit_helper.PROGRAM, str(config))
        rule = Path("/etc/sudoers.d") / daemon
        try:
            rule.write_text(f"{daemon} ALL=(root) NOPASSWD: {' '.join(words)}\n")
            rule.chmod(0o440)
            runs = {
                user: process.run(
                    as_user(user, "sudo", "-n", *words), timeout_s=30, env={}, stdin=request
                )
                for user in (daemon, alice)
            }
        finally:
            rule.unlink()
    assert json.loads(runs[daemon].stdout)["status"] == 0, runs[daemon].stderr
    assert "password is required" in runs[alice].stderr
    assert len(site.pilots()) == 1
