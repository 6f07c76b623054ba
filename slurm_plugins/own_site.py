"""A user's own daemon on a Slurm cluster: the site as the user sees it, limits, and a small job.

``SlurmSites`` is the entry point ``bftrainer.own_sites: slurm``, used by ``bftrainer up``. It uses
what every user may ask: ``scontrol show``, ``sbatch --test-only`` and, where there is accounting,
``sacctmgr show``.

Limits: an association limits what its user has at once, a QOS what each of its users and all
together have. A pilot is a job of one whole node, or of one GPU of it, so a limit on jobs is one on
nodes or shares of them, and one on CPUs or GPUs is divided by what a pilot has. sacctmgr(1), 22.05.

The job of ``bftrainer up --as-job`` runs the daemon; ``bftrainer down`` cancels it. It asks for one
CPU. A minute before its time limit it ends the daemon and requeues itself; Slurm requeues it after
a preemption or the loss of its node. Trainers go on meanwhile (docs/adr/0010-regroup.md).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bftrainer.model.cluster import Node
from bftrainer.model.errors import BatchSystemError, ExitCode, UsageError
from bftrainer.model.hostlist import ParseError
from bftrainer.model.parts import Lend, as_lent
from bftrainer.model.site import DaemonJob, NodeLimit, OwnSite, Wish
from slurm_plugins import commands, own_pilots, parse, site_options
from slurm_plugins.commands import SlurmCommands, why_failed
from slurm_plugins.doctor import MODES, PARTITION_ARGV, partitions_in, words_for_users
from slurm_plugins.fields import whole
from slurm_plugins.floor import Floor
from slurm_plugins.launcher import size_options
from slurm_plugins.lending import partition_limits
from slurm_plugins.own_pilots import PilotSize
from slurm_plugins.parse import duration_s, settings_in

JOB_NAME = "bftrainer-daemon"
MEMORY = "2G"  # a daemon needs 150 MB, a decision on a large cluster more
_BEFORE_END_S = 60
_QUICK_S = 3.0  # for a word of advice nobody waits longer
_JOB_ID = re.compile(r"([0-9]{1,10})(?:;\S*)?")
# bash: ``wait`` ends at once when a trapped signal comes (bash(1), SIGNALS).
_SCRIPT = """\
#!/bin/bash
trap 'is_over=1; kill -TERM "$daemon"' USR1
{command} &
daemon=$!
wait "$daemon"
status=$?
if [ -n "$is_over" ]; then
    wait "$daemon"
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


ASSOCIATION = (
    *("Account", "Partition", "DefaultQOS", "MaxJobs", "MaxSubmit", "GrpJobs", "GrpSubmit"),
    *("GrpTRES", "MaxTRES", "MaxWall"),
)
QOS = (
    *("Name", "MaxJobsPU", "MaxSubmitPU", "GrpJobs", "GrpSubmit", "MaxTRESPU", "GrpTRES"),
    *("MaxTRES", "MaxWall", "PreemptExemptTime"),
)
_JOB_LIMITS = ("MaxJobs", "MaxSubmit", "GrpJobs", "GrpSubmit", "MaxJobsPU", "MaxSubmitPU")
_RESOURCE_LIMITS = ("GrpTRES", "MaxTRESPU")
_COUNT = re.compile(r"[0-9]{1,18}")
_PREEMPTING = ("preempt/partition_prio", "preempt/qos")
_ENDS = ("CANCEL", "REQUEUE")  # modes that end a job; SUSPEND keeps its memory and GPUs
_NONE = frozenset({"", "N/A", "(null)", "UNLIMITED", "NONE"})
_LEAVE_OUT = "Leave out --lend gpus"
Row = Mapping[str, str]


class SlurmSites:
    """Implements ``bftrainer.site.own.plan.OwnSites``."""

    def __init__(self) -> None:
        self._commands = SlurmCommands()
        self._user = pwd.getpwuid(os.geteuid()).pw_name

    def submit_daemon(self, argv: Sequence[str], out: Path, wish: Wish) -> DaemonJob:
        """Submit the daemon's job; BFT-1287 if Slurm refuses it."""
        options = {"--partition": wish.job_partition, "--account": wish.account}
        wckeys = [word for word in wish.sbatch_options if word.startswith("--wckey=")]
        answer = self._commands.run(
            (
                *("sbatch", "--parsable", f"--job-name={JOB_NAME}", "--nodes=1", "--ntasks=1"),
                *("--cpus-per-task=1", f"--mem={MEMORY}", "--requeue", "--open-mode=append"),
                *(f"--signal=B:USR1@{_BEFORE_END_S}", "--chdir=/", "--input=/dev/null"),
                *("--export=ALL", f"--output={str(out).replace('%', '%%')}"),
                *(f"{name}={value}" for name, value in options.items() if value),
                *wckeys,
            ),
            self._commands.base_environment(),
            stdin=_SCRIPT.format(command=shlex.join(argv)),
        )
        job_id = _JOB_ID.fullmatch(answer.stdout.strip())
        if not answer.is_ok or not job_id:
            raise UsageError(
                "BFT-1287",
                f"The job of the daemon was refused: {why_failed(answer)}",
                "Name a partition for it with --job-partition, and an account with --account.",
            )
        return self.find_daemon() or DaemonJob(job_id=job_id[1], state="pending")

    def find_daemon(self) -> DaemonJob | None:
        """Return the daemon's job, if one is queued or runs."""
        argv = ("squeue", "-h", "-u", self._user, "-n", JOB_NAME, "-o", "%i|%T|%r|%N")
        answer = self._commands.query(argv)
        if not answer.is_ok or not answer.stdout:
            return None
        first_line, *_ = answer.stdout.splitlines()
        cells = first_line.split("|")
        if len(cells) != 4:
            return None
        job_id, state, reason, node = cells
        return DaemonJob(job_id=job_id, state=state.lower(), reason=reason, node=node)

    def cancel_daemon(self, job_id: str) -> None:
        """Cancel the daemon's job; one that is gone is not an error."""
        self._commands.query(("scancel", job_id))

    def preemptable(self) -> tuple[str, ...]:
        """Return the partitions whose jobs are ended for others; none if Slurm does not answer."""
        quick = SlurmCommands(timeout_s=_QUICK_S)
        config_answer, partition_answer = map(quick.query, (commands.CONFIG, PARTITION_ARGV))
        if not (config_answer.is_ok and partition_answer.is_ok):
            return ()
        partitions = partitions_in(partition_answer.stdout)
        settings = settings_in(config_answer.stdout)
        return tuple(name for name in partitions if not why_not(name, partitions, settings))

    def examine(self, wish: Wish) -> OwnSite:
        """Read the site for this user.

        Raises:
            UsageError: BFT-1220, -1281 to -1283, -1288, a daemon of this user cannot work here.
            BatchSystemError: BFT-1285, Slurm does not answer.
        """
        try:
            return self._examine(wish)
        except ParseError as problem:
            raise BatchSystemError(
                "BFT-1285",
                f"Slurm printed something unexpected: {problem}.",
                "Report it with the output of 'scontrol show partition'.",
            ) from problem

    def _examine(self, wish: Wish) -> OwnSite:
        try:
            site_options.checked(wish.sbatch_options)
        except ValueError as problem:
            raise UsageError(
                "BFT-1220",
                f"An option for sbatch cannot be passed on: {problem}.",
                "Leave it out, or write it as sbatch's long option: --constraint=ib.",
            ) from problem
        config = settings_in(self._asked(commands.CONFIG))
        partition_lines = self._asked(PARTITION_ARGV)
        partitions = partitions_in(partition_lines)
        partition = choose(partitions, config, wish.partition)
        name, cluster = partition["PartitionName"], config.get("ClusterName", "cluster")
        check_preemption(name, partitions, config)
        if wish.lend is Lend.GPUS and partition_limits(partition_lines)[name].is_exclusive:
            raise UsageError(
                "BFT-1288",
                f"Jobs in partition {name} have whole nodes (OverSubscribe=EXCLUSIVE).",
                f"{_LEAVE_OUT}: then whole nodes are lent there.",
            )
        associations, unread = list[Row](), list[str]()
        if "slurmdbd" in config.get("AccountingStorageType", ""):
            entity = ("assoc", f"user={self._user}", f"cluster={cluster}")
            associations = self._rows(entity, ASSOCIATION, unread)
        options = self._options(name, wish)
        sizes = self._sizes(name, wish, options)
        self._try_out(name, wish, associations, sizes)
        limits, walls = list[NodeLimit](), list[tuple[float, str]]()
        exempt_time = config.get("PreemptExemptTime", "0")
        for row, owner in self._owners(partition, associations, wish, unread):
            exempt_time = row.get("PreemptExemptTime") or exempt_time
            limits += node_limits(row, owner, sizes)
            if limit_s := wall_s(row):
                walls.append((limit_s, f"MaxWall of {owner}"))
        if limit_s := duration_s(partition.get("MaxTime", "UNLIMITED")):
            walls.append((limit_s, f"MaxTime of {name}"))
        time_limit_s, time_limit_words = min(walls, default=(None, ""))
        floor = self._floor(wish)
        return OwnSite(
            cluster=cluster,
            partition=name,
            n_nodes=len(self._nodes(name)),
            preemption=mode_of(partition, config),
            about_preemption=words_for_users(mode_of(partition, config), exempt_time),
            grace_s=duration_s(partition.get("GraceTime", "0")) or 0.0,
            time_limit_s=time_limit_s,
            time_limit_words=time_limit_words,
            limits=tuple(limits),
            unread=tuple(unread),
            n_floor=len(floor),
            batch_options=options | _floor_options(floor),
        )

    def _owners(
        self, partition: Row, associations: Sequence[Row], wish: Wish, unread: list[str]
    ) -> Iterator[tuple[Row, str]]:
        """Yield what limits a pilot: its association, and the QOS of it and of the partition."""
        association = association_of(associations, wish.account, partition["PartitionName"])
        if association is not None:
            yield association, f"user {self._user} in account {association['Account']}"
            pilot_qos = wish.qos or association["DefaultQOS"] or "normal"
            qos_names = sorted({pilot_qos, partition.get("QoS", "")} - _NONE)
            for row in self._rows(("qos", ",".join(qos_names)), QOS, unread):
                yield row, f"QOS {row['Name']}"

    def _floor(self, wish: Wish) -> tuple[str, ...]:
        """Return the nodes of the allocation in which we are, if we are in one."""
        if not (job_id := os.environ.get("SLURM_JOB_ID", "")) or wish.is_as_job:
            return ()
        floor = Floor(commands=self._commands, job_id=job_id, user=self._user)
        floor.look()
        if floor.nodes and wish.lend is Lend.GPUS:
            raise UsageError(
                "BFT-1288",
                f"Nodes of your allocation ({job_id}) are used as a whole.",
                f"{_LEAVE_OUT}, or run bftrainer up outside of it.",
            )
        return floor.nodes

    def _nodes(self, partition: str) -> list[Node]:
        rows = parse.node_rows(self._asked(commands.SINFO))
        return [row.node for row in rows if row.partition == partition]

    def _sizes(
        self, partition: str, wish: Wish, options: Mapping[str, object]
    ) -> tuple[PilotSize, ...]:
        """Return what pilots would ask for; BFT-1288 if no GPU is lent and nothing else is."""
        if wish.lend is Lend.NODES:
            return own_pilots.pilot_sizes(self._nodes(partition), wish.lend)
        from slurm_plugins.adapter import create  # noqa: PLC0415 - advice needs none of it

        with contextlib.closing(create(options)) as system:
            snapshot = as_lent(system.snapshot(wants_cycle=False), wish.lend)
        if snapshot.nodes is None:  # whole nodes are known without all that parts need
            nodes = self._nodes(partition)
        else:
            nodes = [node for node in snapshot.nodes if partition in node.partitions]
        if sizes := own_pilots.pilot_sizes(nodes, wish.lend):
            return sizes
        reasons = dict.fromkeys(node.why_whole for node in nodes if node.why_whole)
        raise UsageError(
            "BFT-1288",
            " ".join((f"No node of partition {partition} lends its GPUs one by one.", *reasons)),
            f"{_LEAVE_OUT}: then whole nodes are lent there.",
        )

    def _try_out(
        self, partition: str, wish: Wish, associations: Sequence[Row], sizes: Sequence[PilotSize]
    ) -> None:
        """Let Slurm judge a pilot of each size without submitting it; one that may start will do.

        Raises:
            UsageError: BFT-1283, it would refuse all of them.
        """
        refusals: list[str] = []
        for size in sizes:
            argv = (
                *("sbatch", "--test-only", f"--partition={partition}", "--nodes=1"),
                *("--time=1", "--no-requeue", "--chdir=/"),
                *(f"--{key}={value}" for key, value in _given(wish).items()),
                *wish.sbatch_options,
                *size_options(size.part),
            )
            environment = self._commands.base_environment()
            answer = self._commands.run(argv, environment, stdin="#!/bin/sh\n")
            if answer.is_ok:
                return
            words = " ".join(answer.stderr.split()).removeprefix("allocation failure: ")[:300]
            refusals.append(words or why_failed(answer))
        advice = ""
        accounts = sorted({row["Account"] for row in associations})
        if accounts:
            advice = f"Yours are: {', '.join(accounts)} (--account). "
        raise UsageError(
            "BFT-1283",
            f"Slurm would refuse a pilot of {self._user} in partition {partition}: {refusals[-1]}.",
            f"{advice}Give --account, --qos or another --partition, what the site requires of jobs"
            " (--comment, --constraint, --sbatch-option), or ask the site for access.",
        )

    def _options(self, partition: str, wish: Wish) -> dict[str, object]:
        options: dict[str, object] = {"pilot_partition": partition, "is_own": True, **_given(wish)}
        if conf := self._commands.base_environment().get("SLURM_CONF"):
            options["slurm_conf"] = conf
        if wish.sbatch_options:
            options["sbatch_options"] = list(wish.sbatch_options)
        return options

    def _asked(self, argv: Sequence[str]) -> str:
        answer = self._commands.query(argv)
        if answer.is_ok:
            return answer.stdout
        raise BatchSystemError(
            "BFT-1285",
            f"Slurm cannot be asked: {why_failed(answer)}",
            "Try again on a login node of the cluster where sinfo answers; without a cluster: "
            "bftrainer try SCRIPT.",
            exit_code=ExitCode.DAEMON_UNREACHABLE,
        )

    def _rows(self, what: Sequence[str], fields: Sequence[str], unread: list[str]) -> list[Row]:
        answer = self._commands.query(
            ("sacctmgr", "-nP", "show", *what, f"format={','.join(fields)}")
        )
        if not answer.is_ok:
            unread.append(f"Limits are unknown; Slurm applies them. {why_failed(answer)}")
            return []
        return rows(answer.stdout, fields)


def _floor_options(floor: Sequence[str]) -> dict[str, object]:
    """Return the options of nodes of the user's own allocation."""
    if not floor:
        return {}
    return {"floor_job": os.environ["SLURM_JOB_ID"]}


def _given(wish: Wish) -> dict[str, str]:
    """Return the user's account and QOS, as far as they are given."""
    values = {"account": wish.account, "qos": wish.qos}
    return {name: value for name, value in values.items() if value}


def rows(text: str, fields: Sequence[str]) -> list[Row]:
    """Parse what ``sacctmgr -nP`` prints; lines of another form are left out."""
    records: list[Row] = []
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) == len(fields):
            records.append(dict(zip(fields, cells, strict=True)))
    return records


def association_of(found: Sequence[Row], account: str, partition: str) -> Row | None:
    """Return the association that a job of this account ("": the default) has."""
    general: Row | None = None  # of all partitions
    for row in found:
        if account not in ("", row["Account"]):
            continue
        if row["Partition"] == partition:
            return row
        if row["Partition"] == "":
            general = general or row
    return general


def node_limits(row: Row, owner: str, sizes: Sequence[PilotSize]) -> Iterator[NodeLimit]:
    """Return the limits of an association or QOS that are set, for pilots of these sizes."""
    for name in _JOB_LIMITS:
        if _COUNT.fullmatch(row.get(name, "")):
            n_nodes, about_pilot = own_pilots.jobs_in_nodes(int(row[name]), sizes)
            yield NodeLimit(n_nodes=n_nodes, words=f"{name}={row[name]} of {owner}{about_pilot}")
    for name in _RESOURCE_LIMITS:
        for resource, count, amount in _resources(row.get(name, "")):
            if own_pilots.takes_any(resource, sizes):
                n_nodes, about_pilot = own_pilots.resource_in_nodes(resource, count, sizes)
                words = f"{name}={resource}={amount} of {owner}{about_pilot}"
                yield NodeLimit(n_nodes=n_nodes, words=words)
    for resource, count, amount in _resources(row.get("MaxTRES", "")):  # of each job
        if not own_pilots.fits_any(resource, count, sizes):
            yield NodeLimit(n_nodes=0, words=f"MaxTRES={resource}={amount} of {owner}")


def wall_s(row: Row) -> float | None:
    """Return the longest time limit of a job; None: none is set."""
    text = row.get("MaxWall", "")
    if not text:
        return None
    return duration_s(text)


def _resources(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield each resource of a limit, how much of it there is, and that as it is printed.

    Memory is in MB; sacctmgr prints it with a unit, ``mem=400G``.
    """
    for word in text.split(","):
        name, _, amount = word.partition("=")
        if _COUNT.fullmatch(amount):
            yield name, int(amount), amount
        elif name == "mem":
            with contextlib.suppress(ParseError):  # "-1" and the like: no limit
                yield name, parse.memory_mb_of(amount), amount


def choose(partitions: Mapping[str, Row], config: Mapping[str, str], wanted: str) -> Row:
    """Return the partition asked for, or the only one that fits (BFT-1281)."""
    fitting = _fitting(partitions, config)
    candidates = "There is none here."
    if fitting:
        candidates = f"Partitions that are: {', '.join(fitting)}."
    if wanted in partitions:
        return partitions[wanted]
    if wanted:
        raise UsageError(
            "BFT-1281",
            f"There is no partition {wanted}.",
            f"Name one with --partition whose jobs can be preempted. {candidates}",
        )
    if len(fitting) == 1:
        return partitions[fitting[0]]
    raise UsageError(
        "BFT-1281",
        f"{len(fitting)} partitions have jobs that can be preempted.",
        f"Name one with --partition. {candidates}",
    )


def _fitting(partitions: Mapping[str, Row], config: Mapping[str, str]) -> list[str]:
    return [name for name in partitions if not why_not(name, partitions, config)]


def check_preemption(name: str, partitions: Mapping[str, Row], config: Mapping[str, str]) -> None:
    """Refuse a partition whose jobs keep their nodes from others (BFT-1282)."""
    if reason := why_not(name, partitions, config):
        advice = (
            "Ask the site for a preemptable partition (scavenge, killable, preempt); "
            "its administrator can also run bftrainer for all users."
        )
        if fitting := _fitting(partitions, config):
            advice = f"Use {' or '.join(fitting)} (--partition)."
        raise UsageError(
            "BFT-1282",
            f"Partition {name} cannot be used: {reason}, so pilots would keep its nodes "
            f"from other users. {MODES.get(mode_of(partitions[name], config), '')}".rstrip(),
            advice,
        )


def why_not(name: str, partitions: Mapping[str, Row], config: Mapping[str, str]) -> str:
    """Say why jobs of a partition are not ended for those of others; "": they are.

    With preemption by QOS the partition does not tell; then Slurm is believed.
    """
    kind, mode = config.get("PreemptType", ""), mode_of(partitions[name], config)
    if kind not in _PREEMPTING:
        return f"nothing is preempted on this cluster (PreemptType={kind or 'none'})"
    if not any(word in mode for word in _ENDS):
        return f"its jobs are not ended for others (PreemptMode={mode})"
    tiers = {n: whole(values.get("PriorityTier", "1")) for n, values in partitions.items()}
    if kind == _PREEMPTING[0] and max(tiers.values()) <= tiers[name]:
        return f"no partition has a higher PriorityTier than its {tiers[name]}"
    return ""


def mode_of(partition: Row, config: Mapping[str, str]) -> str:
    """Return the preemption mode of a partition, by default that of the cluster."""
    return partition.get("PreemptMode") or config.get("PreemptMode", "OFF")
