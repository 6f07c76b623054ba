"""``--host`` over a real sshd on this machine: one connection for several verbs.

BFTRAINER_SSHD names an sshd that is not in /usr/sbin. It runs as an ordinary user, so it cannot
give a terminal, which takes root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support.accounts import accounts, scratch
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long

# bftrainer over there: a word for each argument, and what it reads.
PROGRAM = """\
#!/bin/sh
printf '<%s>' "$@"; echo
cat
echo problem >&2
exit 9
"""
CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {base}/host
AuthorizedKeysFile {base}/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
LogLevel VERBOSE
"""


@dataclass(frozen=True, slots=True)
class LoginHost:
    """A login node of one user, and what is to be typed before a verb for it."""

    base: Path
    user: str

    def types(self, *words: str, stdin: str = "") -> process.Completed:
        argv = (sys.executable, "-m", "bftrainer", "--host", "login", *words)
        return process.run(argv, timeout_s=60, env=self.environment, stdin=stdin)

    @property
    def environment(self) -> dict[str, str]:
        own = {"PATH": f"{self.base}/bin:/usr/bin:/bin", "XDG_RUNTIME_DIR": str(self.base / "run")}
        return {**os.environ, **own}

    def logins(self) -> int:
        return (self.base / "log").read_text(errors="replace").count("Accepted publickey")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def login_host() -> Iterator[LoginHost]:
    sshd = os.environ.get("BFTRAINER_SSHD") or shutil.which("sshd", path="/usr/sbin")
    if sshd is None:
        pytest.skip("there is no sshd (apt-get install openssh-server)")
    if os.geteuid() != 0:
        pytest.skip("an account is made for it: only root can")
    base, port = scratch("bfth"), free_port()
    with contextlib.ExitStack() as left:
        left.callback(shutil.rmtree, base)
        (user,) = left.enter_context(accounts(base, "bfth"))
        home = base / user
        (home / ".profile").write_text(f"PATH={base}/there:$PATH\n")
        for name in ("host", "key"):
            argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(base / name))
            assert process.run(argv, timeout_s=30).is_ok
        (base / "run").mkdir(mode=0o700)
        write(base / "there" / "bftrainer", PROGRAM)
        (base / "sshd_config").write_text(CONFIG.format(port=port, base=base))
        (base / "config").write_text(
            f"Host login\n HostName 127.0.0.1\n Port {port}\n User {user}\n BatchMode yes\n"
            f" IdentityFile {base}/key\n UserKnownHostsFile {base}/known\n"
            " StrictHostKeyChecking accept-new\n"
        )
        write(
            base / "bin" / "ssh",
            f'#!/bin/sh\nexec /usr/bin/ssh -F "${{SSH_CONFIG:-{base}/config}}" "$@"\n',
        )
        account = pwd.getpwnam(user)
        for path in (base / "host", base / "log", home / ".profile"):
            path.touch()
            os.chown(path, account.pw_uid, account.pw_gid)
        daemon = subprocess.Popen(
            (sshd, "-D", "-f", str(base / "sshd_config"), "-E", str(base / "log")),
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=(),
        )
        left.callback(daemon.wait)
        left.callback(daemon.terminate)
        wait_for(lambda: "listening" in (base / "log").read_text(), what="sshd listens")
        host = LoginHost(base, user)
        left.callback(
            process.run,
            ("ssh", "-o", f"ControlPath={base}/run/bftrainer-ssh/%C", "-O", "exit", "login"),
            timeout_s=30,
            env=host.environment,
        )
        os.chown(home, account.pw_uid, account.pw_gid)
        yield host


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_verbs_share_one_login_and_pass_all_on(login_host: LoginHost) -> None:
    odd = ["submit", "a b.py", "it's", "$HOME", "*", "", "ü", "--", "-h"]
    first = login_host.types(*odd, stdin="a script\n")
    words = "".join(f"<{word}>" for word in odd)
    assert first.stdout == f"{words}\na script\n", first.stderr
    assert (first.returncode, first.stderr.splitlines()[-1]) == (9, "problem")
    for _ in range(2):
        assert login_host.types("status").returncode == 9
    assert login_host.logins() == 1


def test_a_program_that_is_missing_and_a_host_that_is_silent(login_host: LoginHost) -> None:
    missing = login_host.types("status")
    assert missing.returncode == 9
    (login_host.base / "there" / "bftrainer").unlink()
    assert "BFT-2128" in login_host.types("status").stderr
    silent = login_host.base / "silent"
    silent.write_text("Host login\n HostName 127.0.0.1\n Port 1\n BatchMode yes\n")
    argv = (sys.executable, "-m", "bftrainer", "--host", "login", "status")
    variables = {**login_host.environment, "SSH_CONFIG": str(silent)}
    done = process.run(argv, timeout_s=60, env=variables)
    assert done.returncode == 6
    assert "BFT-1077: ssh did not reach login" in done.stderr
