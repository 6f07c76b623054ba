"""The privileged helper: what it refuses, and what it does as whom."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch import process
from bftrainer.site.submit import helper
from tests.support import submit_helper
from tests.support.accounts import accounts, as_user, scratch
from tests.support.other_users import needs_root

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
id -u; id -G; umask; pwd; ulimit -c; sed -n 's/^Cap[PEA][rfm][mfb]:[^0]*//p' /proc/self/status
echo --; env -u PWD -u OLDPWD -u SHLVL -u _ | sort
echo --; printf '%s\\n' "$@"
echo --; cat
"""
SQUEUE = """\
#!/bin/sh
echo "7 $USER bf p000017"; echo "8 $USER batch p000018"; echo "9 $USER bf mine"
echo "10 root bf p000019"; echo "11 $USER bf p000020.0123abcd"
"""


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
    identity = [str(account.pw_uid), *map(str, groups), "0077", "/", "0"]
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
    assert (folder / "agent.key").read_text() == "secret"
    assert {stat.S_IMODE(f.stat().st_mode) for f in folder.iterdir()} == {0o600}


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


@needs_root
def test_only_users_whom_root_allows_have_pilots(site: Site) -> None:
    for user in ("root", "daemon", "nobody-there"):
        site.refused({**SUBMIT, "user": user}, "BFT-1528")
    site.refused(SUBMIT, "BFT-1528", users=["bob"])
    site.refused(SUBMIT, "BFT-1528", denied=[site.alice])
    site.refused(SUBMIT, "BFT-1528", min_uid=4_000_000)
    assert site.asked(SUBMIT, users=[], groups=[site.alice])["status"] == 0


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
