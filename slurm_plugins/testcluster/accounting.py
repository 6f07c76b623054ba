"""Accounting of a test cluster: slurmdbd with a database of its own, so that sacct works.

Used by ``cluster`` if the configuration asks for accounting. The database listens on no port, only
on a socket in a private directory, and ends with the cluster; no database of the machine is
touched. Tested with Slurm 22.05 and MariaDB 10.11.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bftrainer.batch import process
from bftrainer.batch.commands import why_failed
from slurm_plugins.testcluster.config import PILOT_QOS, ClusterConfig

PROGRAMS = (
    *("mariadbd", "mariadb-install-db", "my_print_defaults"),
    *("slurmdbd", "sacct", "sacctmgr", "setsid"),
)
PACKAGES = "slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core"
DATABASE = "db"  # folder of the cluster's directory
_INSTALL_TIMEOUT_S = 60.0
_READY_TIMEOUT_S = 30.0
# The data need not survive a crash of the machine, and there is little of it.
_SMALL_AND_QUICK = (
    "--skip-log-bin",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=8M",
    "--innodb-lock-wait-timeout=900",  # required by slurmdbd
    "--innodb-doublewrite=0",
    "--performance-schema=OFF",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """The two daemons behind ``sacct``; only ``start`` has to be called."""

    config: ClusterConfig
    user: str
    env: Mapping[str, str]

    @property
    def socket(self) -> Path:
        """The database's socket."""
        return self.config.directory / DATABASE / "db.sock"

    def start(self, port: int) -> str:
        """Start database and slurmdbd and register the cluster; return what is wrong, or "".

        Args:
            port: of slurmdbd, as in its configuration.
        """
        return self._start_database() or self._start_slurmdbd(port)

    def _start_database(self) -> str:
        home = self.config.directory / DATABASE
        home.chmod(0o700)  # access to the socket is access as the database's root
        data = home / "data"
        # Not in /tmp, where the databases of two clusters would meet.
        places = (f"--datadir={data}", f"--tmpdir={home}")
        common = ("--no-defaults", f"--user={self.user}", *places, *_SMALL_AND_QUICK)
        installation = process.run(
            (
                *("mariadb-install-db", *common),
                *("--auth-root-authentication-method=normal", "--skip-test-db"),
            ),
            timeout_s=_INSTALL_TIMEOUT_S,
            env=self.env,
            cwd=Path("/"),
        )
        if not installation.is_ok:
            return why_failed(installation)
        log = self.config.directory / "log" / "mariadbd.log"
        start = process.run(
            (
                *("setsid", "--fork", "mariadbd", *common, "--skip-networking"),
                *(f"--socket={self.socket}", f"--pid-file={home}/mariadbd.pid"),
                *(f"--log-error={log}", f"--tmpdir={home}"),
            ),
            timeout_s=20,
            env=self.env,
            cwd=Path("/"),
        )
        if not start.is_ok:
            return why_failed(start)
        if not self._is_reached(self.socket):
            return f"no database yet: {_last_words(log)}"
        return ""

    def _start_slurmdbd(self, port: int) -> str:
        # Its configuration cannot name a socket; the client library reads this variable.
        env = {**self.env, "MYSQL_UNIX_PORT": str(self.socket)}
        start = process.run(("slurmdbd",), timeout_s=20, env=env, cwd=Path("/"))
        if not start.is_ok:
            return why_failed(start)
        if not self._is_reached(port):
            return f"no slurmdbd yet: {_last_words(self.config.directory / 'log/slurmdbd.log')}"
        addition = process.run(
            ("sacctmgr", "--immediate", "add", "cluster", self.config.cluster_name),
            timeout_s=20,
            env=self.env,
            cwd=Path("/"),
        )
        if not addition.is_ok:
            return why_failed(addition)
        if self.config.preempt_type != "qos":
            return ""
        return self._add_qos()

    def _add_qos(self) -> str:
        """Create the pilots' QOS before the controller reads its name in slurm.conf."""
        orders = (
            f"add qos {PILOT_QOS} Priority=0 UsageFactor=0 Flags=NoReserve",
            f"modify qos normal set Priority=1000 Preempt={PILOT_QOS}",
        )
        for order in orders:
            argv = ("sacctmgr", "--immediate", *order.split())
            answer = process.run(argv, timeout_s=20, env=self.env, cwd=Path("/"))
            if not answer.is_ok:
                return why_failed(answer)
        return ""

    def _is_reached(self, place: Path | int) -> bool:
        """Wait until a socket or a port of this machine accepts connections."""
        address: str | tuple[str, int]
        if isinstance(place, Path):
            family, address = socket.AF_UNIX, str(place)
        else:
            family, address = socket.AF_INET, ("127.0.0.1", place)
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError), socket.socket(family) as probe:
                probe.connect(address)
                return True
            time.sleep(0.05)
        return False


def render(config: ClusterConfig, user: str, port: int) -> str:
    """Return slurmdbd.conf."""
    where = config.directory
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={where}/run/munge.sock",
        "DbdHost": "localhost",
        "DbdAddr": "127.0.0.1",
        "DbdPort": port,
        "SlurmUser": user,
        "PidFile": f"{where}/run/slurmdbd.pid",
        "LogFile": f"{where}/log/slurmdbd.log",
        "DebugLevel": "info",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "root",  # of the private database
        "StorageLoc": "slurm_acct_db",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def slurm_settings(config: ClusterConfig, port: int) -> dict[str, object]:
    """Return the settings for slurm.conf."""
    settings: dict[str, object] = {}
    if config.enforces_limits:
        settings["AccountingStorageEnforce"] = "associations,limits,qos"
    return settings | {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": port,
        # Clients of slurmdbd read the munge socket from here, not from AuthInfo.
        "AccountingStoragePass": f"{config.directory}/run/munge.sock",
    }


def missing(path: str) -> list[str]:
    """Return the required programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def _last_words(log: Path) -> str:
    try:
        return " ".join(log.read_text(errors="replace").split())[-200:]
    except OSError:
        return "no log."
