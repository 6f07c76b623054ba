"""What a cluster of volclava looks like, and the files that describe it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PREFIX_VARIABLE: Final = "BFTRAINER_VOLCLAVA"
MASTER: Final = "lsfm"
ACCOUNTS: Final = {"lsfadm": 7001, "alice": 7002, "bob": 7003, "bft": 7004}
_PROGRAMS = ("nsenter", "unshare", "setpriv", "mount", "cc")


@dataclass(frozen=True, slots=True, kw_only=True)
class VolclavaConfig:
    """One cluster: a master host without slots, and ``n_nodes`` hosts for jobs."""

    directory: Path
    prefix: Path  # of the installation
    n_nodes: int = 5
    slots_per_node: int = 4
    mbd_sleep_s: int = 2
    sbd_sleep_s: int = 2
    new_job_sched_delay_s: int | None = 0  # None: volclava's own default
    gpus_per_node: int = 0
    up_timeout_s: float = 150.0

    @property
    def node_names(self) -> tuple[str, ...]:
        """The hosts that run jobs."""
        return tuple(f"n{number}" for number in range(1, self.n_nodes + 1))

    @property
    def host_names(self) -> tuple[str, ...]:
        """All hosts, the master first."""
        return (MASTER, *self.node_names)

    @property
    def lsf_envdir(self) -> Path:
        """The directory of lsf.conf."""
        return self.directory / "conf"

    @property
    def bindir(self) -> Path:
        """Wrappers of the commands, which can be called from outside the lab."""
        return self.directory / "bin"

    @property
    def events_file(self) -> Path:
        """The journal of mbatchd."""
        return self.directory / "work" / "logdir" / "lsb.events"

    def batch_options(self) -> dict[str, str]:
        """The options that the LSF adapter is given for this cluster."""
        return {
            "lsf_envdir": str(self.lsf_envdir),
            "bindir": str(self.bindir),
            "events_file": str(self.events_file),
            "pilot_queue": "bf",
        }


def why_not() -> str:
    """Why no volclava can be run here; empty: it can."""
    prefix = os.environ.get(PREFIX_VARIABLE)
    if not prefix:
        return f"{PREFIX_VARIABLE} does not name an installed volclava"
    if not (Path(prefix) / "sbin" / "mbatchd").exists():
        return f"{PREFIX_VARIABLE}: there is no sbin/mbatchd in {prefix}"
    if os.geteuid() != 0:
        return "volclava's hosts are namespaces, which need root"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def render(config: VolclavaConfig) -> Mapping[str, str]:
    """The files of the configuration directory, by name."""
    directory, prefix = config.directory, config.prefix
    return {
        "lsf.conf": _lines(
            f"LSF_SERVERDIR={prefix}/sbin",
            f"LSF_BINDIR={prefix}/bin",
            f"LSF_LIBDIR={prefix}/lib",
            f"LSB_SHAREDIR={directory}/work",
            f"LSF_CONFDIR={config.lsf_envdir}",
            f"LSB_CONFDIR={config.lsf_envdir}",
            f"LSF_LOGDIR={directory}/log",
            "LSF_LOG_MASK=LOG_WARNING",
            "LSF_LIM_PORT=6322",
            "LSF_RES_PORT=6323",
            "LSB_MBD_PORT=6324",
            "LSB_SBD_PORT=6325",
            "LSF_AUTH=eauth",
            "LSB_MAILPROG=/bin/true",
            # As its own installation has it. Without, sbatchd waits up to 3 s for pim, which sleeps
            # before it answers, and the start of a job waits for sbatchd.
            "LSF_PIM_SLEEPTIME_UPDATE=y",
        ),
        "lsf.shared": _lines(
            *_section("Cluster", "ClusterName", "lab"),
            *_section("HostType", "TYPENAME", "linux"),
            *_section("HostModel", "MODELNAME CPUFACTOR ARCHITECTURE", "IntelI5 100 (x86_64)"),
            *_section(
                "Resource",
                "RESOURCENAME TYPE INTERVAL INCREASING DESCRIPTION",
                "cs Boolean () () (Compute server)",
            ),
        ),
        "lsf.task": "",
        "lsf.cluster.lab": _lines(
            *_section("ClusterAdmins", "Administrators = lsfadm"),
            *_section(
                "Host",
                "HOSTNAME model type server r1m RESOURCES",
                *(f"{name} IntelI5 linux 1 - ()" for name in config.host_names),
            ),
        ),
        "lsb.hosts": _lines(
            *_section(
                "Host",
                "HOST_NAME MXJ JL/U r1m pg ls tmp DISPATCH_WINDOW",
                f"{MASTER} 0 () () () () () ()",
                *(f"{n} {config.slots_per_node} () () () () () ()" for n in config.node_names),
            )
        ),
        "lsb.params": _lines(
            *_section(
                "Parameters",
                "DEFAULT_QUEUE = normal",
                f"MBD_SLEEP_TIME = {config.mbd_sleep_s}",
                f"SBD_SLEEP_TIME = {config.sbd_sleep_s}",
                "JOB_ACCEPT_INTERVAL = 0",
            )
        ),
        "lsb.users": "",
        "lsb.queues": _lines(
            *_queue(config, "normal", 30, "SLOT_RESERVE = MAX_RESERVE_TIME[1000]"),
            *_queue(
                config,
                "bf",
                1,
                "RUNLIMIT = 10 240",
                "USERS = bft lsfadm",
                "DESCRIPTION = pilots",
            ),
        ),
    }


def accounts_files(config: VolclavaConfig) -> Mapping[str, str]:
    """What is added to passwd, group and hosts of the lab's own /etc."""
    home = config.directory / "home"
    return {
        "passwd": _lines(
            *(f"{n}:x:{uid}:{uid}::{home}/{n}:/bin/sh" for n, uid in ACCOUNTS.items())
        ),
        "group": _lines(*(f"{name}:x:{uid}:" for name, uid in ACCOUNTS.items())),
        "hosts": _lines(
            "127.0.0.1 localhost",
            *(f"127.0.1.{number} {n}" for number, n in enumerate(config.host_names, start=1)),
        ),
    }


def _queue(config: VolclavaConfig, name: str, priority: int, *more: str) -> tuple[str, ...]:
    delay_s = config.new_job_sched_delay_s
    delay = () if delay_s is None else (f"NEW_JOB_SCHED_DELAY = {delay_s}",)
    return _section(
        "Queue",
        f"QUEUE_NAME = {name}",
        f"PRIORITY = {priority}",
        "EXCLUSIVE = Y",
        "BACKFILL = Y",
        *delay,
        *more,
    )


def _section(name: str, *lines: str) -> tuple[str, ...]:
    return (f"Begin {name}", *lines, f"End {name}", "")


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)
