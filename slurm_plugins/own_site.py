"""What a user without an administrator can do on a Slurm cluster, and what cannot work there.

``SlurmSites`` is the entry point ``bftrainer.own_sites: slurm``, used by ``bftrainer up``. It uses
what every user may ask: ``scontrol show``, ``sbatch --test-only`` and, where there is accounting,
``sacctmgr show``.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bftrainer.model.cluster import Node, NodeLeft
from bftrainer.model.errors import BatchSystemError, UsageError
from bftrainer.model.hostlist import ParseError
from bftrainer.model.site import DaemonJob, NodeLimit, OwnSite, Wish
from slurm_plugins import commands, own_job, own_limits, parse, slots
from slurm_plugins.commands import SlurmCommands, why_failed
from slurm_plugins.doctor import PARTITION_ARGV
from slurm_plugins.fields import whole
from slurm_plugins.floor import Floor
from slurm_plugins.launcher import size_options
from slurm_plugins.own_limits import Row, Taken
from slurm_plugins.parse import duration_s, settings_in, values_in

_PREEMPTING = ("preempt/partition_prio", "preempt/qos")
_ENDS = ("CANCEL", "REQUEUE")  # modes that end a job; SUSPEND keeps its memory and GPUs
_NONE = frozenset({"", "N/A", "(null)", "UNLIMITED", "NONE"})


class SlurmSites:
    """Implements ``bftrainer.site.own.plan.OwnSites``."""

    def __init__(self) -> None:
        self._commands = SlurmCommands()
        self._user = pwd.getpwuid(os.geteuid()).pw_name

    def examine(self, wish: Wish) -> OwnSite:
        """Read the site for this user.

        Raises:
            UsageError: BFT-1281 to -1283, a daemon of this user cannot work here.
            BatchSystemError: BFT-1285, Slurm does not answer.
        """
        try:
            return _Site(wish, self._commands, self._user).examine()
        except ParseError as problem:
            raise BatchSystemError(
                "BFT-1285",
                f"Slurm printed something unexpected: {problem}.",
                "Report it with the output of 'scontrol show partition'.",
            ) from problem

    def submit_daemon(self, argv: Sequence[str], out: Path, wish: Wish) -> DaemonJob:
        """Submit the daemon's job; BFT-1287 if Slurm refuses it."""
        options = (("--partition", wish.job_partition), ("--account", wish.account))
        job_id = own_job.submit(self._commands, argv, out, options)
        return self.find_daemon() or DaemonJob(job_id=job_id, state="pending")

    def find_daemon(self) -> DaemonJob | None:
        """Return the daemon's job, if one is queued or runs."""
        return own_job.find(self._commands, self._user)

    def cancel_daemon(self, job_id: str) -> None:
        """Cancel the daemon's job."""
        own_job.cancel(self._commands, job_id)


@dataclass(slots=True)
class _Site:
    wish: Wish
    commands: SlurmCommands
    user: str
    _unread: list[str] = field(default_factory=list)

    def examine(self) -> OwnSite:
        config = settings_in(self._asked(commands.CONFIG))
        shown = [values_in(line) for line in self._asked(PARTITION_ARGV).splitlines()]
        partitions = {values["PartitionName"]: values for values in shown if values}
        chosen = choose(partitions, config, self.wish.partition)
        name, cluster = chosen["PartitionName"], config.get("ClusterName", "cluster")
        check_preemption(name, partitions, config)
        nodes = self._nodes(name)
        share = slots.share_of(self.wish.share, nodes) if self.wish.share else None
        own = (
            []
            if "slurmdbd" not in config.get("AccountingStorageType", "")
            else self._rows(
                own_limits.associations_argv(self.user, cluster), own_limits.ASSOCIATION
            )
        )
        self._try_out(name, own, share)
        limits, walls = self._limits(chosen, own, Taken.of(nodes, share))
        return OwnSite(
            cluster=cluster,
            partition=name,
            n_nodes=sum(len(slots.names(n, share)) if share else 1 for n in nodes),
            preemption=mode_of(chosen, config),
            grace_s=duration_s(chosen.get("GraceTime", "0")) or 0.0,
            time_limit_s=min(walls)[0] if walls else None,
            time_limit_words=min(walls)[1] if walls else "",
            limits=tuple(limits),
            unread=tuple(self._unread),
            n_floor=len(self._floor()),
            batch_options=self._options(name, share),
        )

    def _limits(
        self, chosen: Row, own: Sequence[Row], node: Taken
    ) -> tuple[list[NodeLimit], list[tuple[float, str]]]:
        """Return what the association and the QOS of a pilot allow: nodes, time limits."""
        name = chosen["PartitionName"]
        owners: list[tuple[Row, str]] = []
        mine = own_limits.association_of(own, self.wish.account, name)
        if mine is not None:
            owners.append((mine, f"user {self.user} in account {mine['Account']}"))
            used = self.wish.qos or mine["DefaultQOS"] or "normal"
            wanted = {used, chosen.get("QoS", "")} - _NONE
            rows = self._rows(own_limits.qos_argv(tuple(wanted)), own_limits.QOS)
            owners += [(row, f"QOS {row['Name']}") for row in rows]
        limits = [one for row, owner in owners for one in own_limits.node_limits(row, owner, node)]
        walls = [(own_limits.wall_s(row), f"MaxWall of {owner}") for row, owner in owners]
        walls.append((duration_s(chosen.get("MaxTime", "UNLIMITED")), f"MaxTime of {name}"))
        return limits, [(limit_s, words) for limit_s, words in walls if limit_s]

    def _floor(self) -> tuple[str, ...]:
        """Return the nodes of the allocation in which we are, if we are in one."""
        if not (job_id := os.environ.get("SLURM_JOB_ID", "")) or self.wish.is_as_job:
            return ()
        floor = Floor(commands=self.commands, job_id=job_id, user=self.user)
        floor.look()
        if floor.nodes and self.wish.share:
            raise UsageError(
                "BFT-1288",
                f"Nodes of your allocation ({job_id}) are used as a whole.",
                "Leave out --gpus-per-pilot and the like, or run bftrainer up outside of it.",
            )
        return floor.nodes

    def _nodes(self, partition: str) -> list[Node]:
        rows = [r for r in parse.node_rows(self._asked(commands.SINFO)) if r.partition == partition]
        if self.wish.share and any(row.allows.is_exclusive for row in rows):
            raise UsageError(
                "BFT-1288",
                f"Jobs in partition {partition} have whole nodes (OverSubscribe=EXCLUSIVE).",
                "Leave out --gpus-per-pilot, --cpus-per-pilot and --mem-per-pilot.",
            )
        return [row.node for row in rows]

    def _try_out(self, partition: str, own: Sequence[Row], share: NodeLeft | None) -> None:
        """Let Slurm judge a pilot without submitting it."""
        options = [f"{key}={value}" for key, value in self._given() if value]
        options += size_options(share)
        argv = (
            *("sbatch", "--test-only", f"--partition={partition}", "--nodes=1"),
            *("--time=1", "--no-requeue", "--chdir=/", *options),
        )
        done = self.commands.run(argv, self.commands.base_environment(), stdin="#!/bin/sh\n")
        if done.is_ok:
            return
        words = " ".join(done.stderr.split()).removeprefix("allocation failure: ")[:300]
        accounts = sorted({row["Account"] for row in own})
        advice = f"Yours are: {', '.join(accounts)} (--account). " if accounts else ""
        raise UsageError(
            "BFT-1283",
            f"Slurm would refuse a pilot of {self.user} in partition {partition}: "
            f"{words or why_failed(done)}.",
            f"{advice}Give --account, --qos or another --partition, or ask the site for access.",
        )

    def _given(self) -> tuple[tuple[str, str], ...]:
        return (("--account", self.wish.account), ("--qos", self.wish.qos))

    def _options(self, partition: str, share: NodeLeft | None) -> Mapping[str, object]:
        conf = self.commands.base_environment().get("SLURM_CONF")
        return {
            "pilot_partition": partition,
            "is_own": True,
            **{key.removeprefix("--"): value for key, value in self._given() if value},
            **({"slurm_conf": conf} if conf else {}),
            **({"floor_job": os.environ["SLURM_JOB_ID"]} if self._floor() else {}),
            **(
                {
                    "slot_cpus": share.cpus,
                    "slot_memory_mb": share.memory_mb,
                    "slot_gpus": share.gpus,
                }
                if share
                else {}
            ),
        }

    def _asked(self, argv: Sequence[str]) -> str:
        done = self.commands.query(argv)
        if done.is_ok:
            return done.stdout
        raise BatchSystemError(
            "BFT-1285",
            f"Slurm cannot be asked: {why_failed(done)}",
            "Try again on a login node of the cluster where sinfo answers.",
        )

    def _rows(self, argv: Sequence[str], fields: Sequence[str]) -> list[Row]:
        done = self.commands.query(argv)
        if not done.is_ok:
            self._unread.append(f"Limits are unknown; Slurm applies them. {why_failed(done)}")
        return own_limits.rows(done.stdout, fields) if done.is_ok else []


def choose(partitions: Mapping[str, Row], config: Mapping[str, str], wanted: str) -> Row:
    """Return the partition asked for, or the only one that fits (BFT-1281)."""
    fitting = [name for name in partitions if not why_not(name, partitions, config)]
    named = f"Partitions that are: {', '.join(fitting)}." if fitting else "There is none here."
    if wanted in partitions:
        return partitions[wanted]
    if wanted:
        raise UsageError(
            "BFT-1281",
            f"There is no partition {wanted}.",
            f"Name one with --partition whose jobs can be preempted. {named}",
        )
    if len(fitting) == 1:
        return partitions[fitting[0]]
    raise UsageError(
        "BFT-1281",
        f"{len(fitting)} partitions have jobs that can be preempted.",
        f"Name one with --partition. {named}",
    )


def check_preemption(name: str, partitions: Mapping[str, Row], config: Mapping[str, str]) -> None:
    """Refuse a partition whose jobs keep their nodes from others (BFT-1282)."""
    if reason := why_not(name, partitions, config):
        fitting = [n for n in partitions if not why_not(n, partitions, config)]
        advice = (
            f"Use {' or '.join(fitting)} (--partition)."
            if fitting
            else (
                "Ask the site for a preemptable partition (scavenge, killable, preempt); "
                "its administrator can also run bftrainer for all users."
            )
        )
        raise UsageError(
            "BFT-1282",
            f"Partition {name} cannot be used: {reason}, so pilots would keep its nodes "
            "from other users.",
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
