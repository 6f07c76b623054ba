"""Writes the files of a stand-in cluster: commands, LSF's configuration, the jobs' script."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from bftrainer.batch import awake, process
from lsf_adapters.testcluster import client, hooks, options
from lsf_adapters.testcluster.config import CLUSTER, MASTER, LsfConfig, Queue
from lsf_adapters.testcluster.show_cluster import BANNERS
from lsf_adapters.testcluster.verbs import verbs

# Notes its start and end, also when it is killed politely. A job submitted with ``submit``.
_JOB_SCRIPT = """\
note() { echo "$(date +%s.%N) $1 $HOSTNAME $LSB_HOSTS" >>"$events/$LSB_JOBID"; }
events=$1
note START
trap 'note END' EXIT
trap 'exit 143' TERM INT USR2
sleep "$2" &
wait $!
"""
_DOWN = {
    "ibm": ("LSF is down. Please wait ...", "Cannot connect to LSF. Please wait ..."),
    "volclava": (
        "LSF daemon (LIM) not responding ... still trying",
        "batch system daemon not responding ... still trying",
    ),
}


def install(config: LsfConfig) -> None:
    """Write all files of a cluster whose directories exist."""
    _install_commands(config)
    _install_library(config)
    _install_settings(config)
    for path, text in _configuration(config).items():
        target = config.conf / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def _install_commands(config: LsfConfig) -> None:
    text = f"#!{_interpreter()} -IS\n{Path(client.__file__).read_text()}"
    first = config.bin / "lsid"
    first.write_text(text)
    first.chmod(0o755)
    names = [config.bin / name for name in verbs(config.dialect) if name != "lsid"]
    for path in (*names, config.directory / "lib" / "_fault"):
        os.link(first, path)


def _interpreter() -> str:
    """Return an interpreter for commands: ours, or the system's if others cannot reach ours."""
    ours = Path(sys.executable).resolve()
    is_open = all(parent.stat().st_mode & stat.S_IXOTH for parent in ours.parents)
    if is_open:
        return str(ours)
    return shutil.which("python3", path="/usr/bin:/bin") or str(ours)


def _install_library(config: LsfConfig) -> None:
    """Copy what a command with hooks imports, so that every user can read it."""
    lib = config.directory / "lib"
    for module in (awake, process, hooks, options):
        *packages, name = module.__name__.split(".")
        target = lib.joinpath(*packages)
        target.mkdir(parents=True, exist_ok=True)
        for package in (target, *target.parents):
            if package != lib and package.is_relative_to(lib):
                (package / "__init__.py").touch()
        shutil.copyfile(str(module.__file__), target / f"{name}.py")
    (config.directory / "lib" / "job.sh").write_text(_JOB_SCRIPT)


def _install_settings(config: LsfConfig) -> None:
    lim, mbatchd = _DOWN[config.dialect]
    settings = {
        "retry": f"{config.profile.retry_s:g}",
        "lim.message": lim,
        "mbatchd.message": mbatchd,
        "banner": BANNERS[config.dialect],
    }
    if config.is_ibm:
        settings["is_ibm"] = ""
    for name, text in settings.items():
        (config.directory / "run" / name).write_text(text)


def _configuration(config: LsfConfig) -> dict[str, str]:
    directory, parameters = config.directory, config.parameters
    conf: dict[str, object] = {
        "LSF_CONFDIR": config.conf,
        "LSB_CONFDIR": config.conf / "lsbatch",
        "LSB_SHAREDIR": directory / "work",
        "LSF_BINDIR": config.bin,
        "LSF_SERVERDIR": directory / "etc",
        "LSF_LIBDIR": directory / "lib",
        "LSF_LOGDIR": directory / "log",
        "LSF_MASTER_LIST": f'"{MASTER}"',
    }
    switches = {
        "LSB_USE_SEQUENTIAL_SIGNAL": parameters.sequential_signal,
        "LSB_DISPLAY_YEAR": parameters.display_year,
        "LSB_DISABLE_LIMLOCK_EXCL": parameters.disable_limlock_excl,
    }
    if config.is_ibm:
        for key, is_set in switches.items():
            if is_set:
                conf[key] = "Y"
        if parameters.short_hostlist:
            conf["LSB_SHORT_HOSTLIST"] = "1"
    lines = [f"{key}={value}" for key, value in conf.items()]
    batch = f"lsbatch/{CLUSTER}/configdir"
    slots_of = {MASTER: 0} | dict.fromkeys(config.node_names, config.slots_per_node)
    hosts = "".join(f"{name} linux IntelI5 1 - -\n" for name in slots_of)
    slots = "".join(f"{name} {n} () () () () ()\n" for name, n in slots_of.items())
    return {
        "lsf.conf": "\n".join(lines) + "\n",
        "lsf.shared": f"Begin Cluster\nClusterName\n{CLUSTER}\nEnd Cluster\n",
        f"lsf.cluster.{CLUSTER}": (
            f"Begin Host\nHOSTNAME model type server r1m mem\n{hosts}End Host\n"
        ),
        f"{batch}/lsb.params": _params(config),
        f"{batch}/lsb.queues": "".join(_queue(config, queue) for queue in config.all_queues),
        f"{batch}/lsb.hosts": (
            f"Begin Host\nHOST_NAME MXJ r1m pg ls tmp DISPATCH_WINDOW\n{slots}End Host\n"
        ),
    }


def _params(config: LsfConfig) -> str:
    profile, parameters = config.profile, config.parameters
    default = next(queue.name for queue in config.all_queues if queue.is_default)
    values: dict[str, object] = {
        "DEFAULT_QUEUE": default,
        "MBD_SLEEP_TIME": max(1, round(profile.mbd_sleep_s)),
        "SBD_SLEEP_TIME": max(1, round(profile.sbd_sleep_s)),
        "JOB_TERMINATE_INTERVAL": max(1, round(profile.terminate_interval_s)),
        "MAX_JOB_NUM": parameters.max_job_num,
    }
    if profile.new_job_sched_delay_s is not None:
        values["NEW_JOB_SCHED_DELAY"] = 0
    if config.is_ibm:
        if parameters.preempt_jobtype:
            values["PREEMPT_JOBTYPE"] = " ".join(parameters.preempt_jobtype)
        values["PREEMPT_DELAY"] = f"{parameters.preempt_delay_s:g}"
        if parameters.max_job_preempt is not None:
            values["MAX_JOB_PREEMPT"] = parameters.max_job_preempt
        if parameters.allocation_planner:
            values["ALLOCATION_PLANNER"] = "Y"
    return _section("Parameters", values)


def _queue(config: LsfConfig, queue: Queue) -> str:
    values: dict[str, object] = {"QUEUE_NAME": queue.name, "PRIORITY": queue.priority}
    if queue.backfills:
        values["BACKFILL"] = "Y"
    if queue.reserve_passes:
        values["SLOT_RESERVE"] = f"MAX_RESERVE_TIME[{queue.reserve_passes}]"
    if queue.allows_exclusive:
        values["EXCLUSIVE"] = "Y"
    if queue.preemption and config.is_ibm:
        values["PREEMPTION"] = queue.preemption
    if queue.terminates_preempted and config.is_ibm:
        values["TERMINATE_WHEN"] = "PREEMPT"
    if queue.max_limit_s is not None:
        limits_s = [queue.max_limit_s]
        if queue.default_limit_s:
            limits_s.insert(0, queue.default_limit_s)
        values["RUNLIMIT"] = " ".join(f"{limit_s / 60:g}" for limit_s in limits_s)
    if queue.terminate_signal:
        values["JOB_CONTROLS"] = f"TERMINATE[{queue.terminate_signal}]"
    if queue.users:
        values["USERS"] = " ".join(queue.users)
    if queue.hosts:
        values["HOSTS"] = " ".join(queue.hosts)
    values["DESCRIPTION"] = queue.description
    return _section("Queue", values) + "\n"


def _section(name: str, values: Mapping[str, object]) -> str:
    lines = "".join(f"{key} = {value}\n" for key, value in values.items())
    return f"Begin {name}\n{lines}End {name}\n"
