"""A site for many users: a real Slurm, an unprivileged daemon, the submit helper, and people.

Only root can make all that.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.api.client import Client
from bftrainer.batch import process
from bftrainer.model.errors import BftError
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.slurm_fixtures import running_cluster
from tests.support import submit_helper
from tests.support.accounts import accounts, as_user, python_for_all, scratch
from tests.support.waiting import wait_for

POLICY = """\
run_as: submitter
poll_interval_s: 0.2
reserve_nodes_per_type: 0
hold_idle_s: 0.5
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody with an account, a home closed to others, and the verbs."""

    name: str
    python: str
    environment: dict[str, str]

    @property
    def account(self) -> pwd.struct_passwd:
        return pwd.getpwnam(self.name)

    @property
    def home(self) -> Path:
        return Path(self.account.pw_dir)

    def runs(self, *argv: str) -> process.Completed:
        """Run a command as this user."""
        whose = {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name}
        return process.run(
            as_user(self.name, *argv),
            timeout_s=60,
            env={**self.environment, **whose},
            cwd=Path("/"),
        )

    def says(self, *words: str) -> process.Completed:
        """Run a verb."""
        return self.runs(self.python, "-m", "bftrainer", *words)

    def does(self, *words: str) -> str:
        """Run a verb that succeeds; return what it printed."""
        done = self.says(*words)
        assert done.is_ok, done.stderr
        return done.stdout

    def python_says(self, text: str, *arguments: str) -> process.Completed:
        """Run a program as this user."""
        return self.runs(self.python, "-I", "-c", text, *arguments)

    def writes(self, name: str, text: str) -> Path:
        """Put a file into the home."""
        path = self.home / name
        path.write_text(text)
        os.chown(path, self.account.pw_uid, self.account.pw_gid)
        return path


@dataclass(slots=True, kw_only=True)
class SharedSite:
    """The site while it runs."""

    cluster: SlurmTestCluster
    people: tuple[Person, ...]
    service: Person  # whose daemon it is
    root: Path  # of root's, where others may read
    socket: Path
    helper_socket: Path
    daemon: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> Client:
        """Of root."""
        return Client(self.socket)

    @property
    def state(self) -> Path:
        return self.service.home / "state"

    def start(self, policy: str = POLICY, **more: object) -> None:
        """Start the daemon, with more options of the adapter."""
        self.service.writes("policy.yaml", policy)
        options = {**self.cluster.config.batch_options(), "submit_helper": str(self.helper_socket)}
        options.update({name: str(value) for name, value in more.items()})
        argv = (
            *(self.service.python, "-m", "bftrainer.cli.main", "daemon"),
            *("--state-dir", str(self.state), "--socket", str(self.socket)),
            *("--policy", str(self.service.home / "policy.yaml")),
            *("--bind", "127.0.0.1", "--agent-address", "127.0.0.1"),
            *("--log-file", str(self.service.home / "daemon.log"), "--batch-system", "slurm"),
            *(w for k, v in options.items() for w in ("--batch-option", f"{k}={v}")),
        )
        out = self.service.home / "daemon.out"
        environment = {**self.service.environment, "HOME": str(self.service.home)}
        with out.open("ab") as stream:
            self.daemon = process.spawn(
                as_user(self.service.name, *argv),
                env=environment,
                stdout=stream,
                stderr=stream,
                cwd=Path("/"),
            )

        def answers() -> bool:
            assert self.daemon is None or self.daemon.poll() is None, out.read_text()
            with contextlib.suppress(BftError):
                return bool(self.client.status())
            return False

        wait_for(answers, what="the daemon answers")

    def stop(self) -> None:
        """SIGTERM."""
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.wait(30)
            self.daemon = None


@contextlib.contextmanager
def shared_site(
    *names: str, n_nodes: int, grace_time_s: int = 0, **settings: Any
) -> Iterator[SharedSite]:
    """Make a site of these users; the daemon is not started yet.

    ``settings`` are further ones of ``ClusterConfig``.
    """
    root, homes = scratch("bft-site-", "/run"), scratch("bft-homes-")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        stack.callback(shutil.rmtree, homes)
        people = stack.enter_context(accounts(homes, *names))
        (service,) = stack.enter_context(accounts(homes, "bftd", is_system=True))
        cluster = stack.enter_context(
            running_cluster(
                **{
                    "n_nodes": n_nodes,
                    "gpus_per_node": 0,
                    "bf_interval_s": 2,
                    "scheduler_parameters": FAST_CYCLE,
                    "grace_time_s": grace_time_s,
                    **settings,
                }
            )
        )
        python = python_for_all(root / "venv")
        config = submit_helper.write_config(
            root / "submit-helper.json",
            daemon_user=service,
            partition=cluster.config.pilot_partition,
            agent=[python, "-I", "-m", "trainers.agent"],
            groups=people,  # of each user's own
            environment={"PATH": "/usr/bin:/bin", **cluster.env},
        )
        place = root / "bftrainer"
        place.mkdir(mode=0o755)
        os.chown(place, pwd.getpwnam(service).pw_uid, pwd.getpwnam(service).pw_gid)
        helper_socket = root / "submit.sock"
        stack.enter_context(submit_helper.listening(helper_socket, config))
        environment = {
            **cluster.env,
            "PATH": f"{Path(python).parent}:/usr/bin:/bin",
            "BFTRAINER_SOCKET": str(place / "daemon.sock"),
        }
        everybody = [
            Person(name=name, python=python, environment=environment) for name in (*people, service)
        ]
        site = SharedSite(
            cluster=cluster,
            people=tuple(everybody[:-1]),
            service=everybody[-1],
            root=root,
            socket=place / "daemon.sock",
            helper_socket=helper_socket,
        )
        stack.callback(site.stop)
        yield site
