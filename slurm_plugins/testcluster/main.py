"""``bftrainer-testcluster``: starts, uses and stops a real Slurm on this host.

The command line of ``slurm_plugins.testcluster``; each verb prints what a person or a script needs
next, and ends with the exit codes of ``bftrainer``.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, ParamSpec

import click

from bftrainer.batch.commands import why_failed
from bftrainer.model.errors import BftError, ExitCode
from slurm_plugins.testcluster.cluster import SlurmTestCluster
from slurm_plugins.testcluster.config import PREFIX_VARIABLE, ClusterConfig
from slurm_plugins.testcluster.sharing import Sharing
from slurm_plugins.testcluster.workload import WorkloadRun, load_workload

P = ParamSpec("P")


def _default_directory() -> Path:
    return Path("/tmp") / f"bftrainer-testcluster-{os.getuid()}"  # noqa: S108  (short, enterable)


def _reported(verb: Callable[P, None]) -> Callable[P, None]:
    """Print an error as code, cause and next step, and end with its exit code."""

    @functools.wraps(verb)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            verb(*args, **kwargs)
        except BftError as problem:
            click.echo(f"{problem.code}: {problem.cause}\n{problem.next_step}", err=True)
            sys.exit(problem.exit_code)

    return wrapper


_directory = click.option(
    "--directory",
    "-d",
    type=click.Path(path_type=Path, file_okay=False),
    default=_default_directory,
    show_default="bftrainer-testcluster-UID in /tmp",
    help="Directory of all files of the cluster.",
)


@click.group()
def main() -> None:
    """A real Slurm of several nodes on this host, for tests and development."""


@main.command()
@_directory
@click.option("--nodes", "n_nodes", type=click.IntRange(1, 512), default=8, show_default=True)
@click.option("--gpus", type=click.IntRange(0, 64), default=4, show_default=True, help="Per node.")
@click.option("--cpus", type=click.IntRange(1), default=4, show_default=True, help="Per node.")
@click.option(
    "--memory",
    "memory_mb",
    type=click.IntRange(1),
    default=4000,
    show_default=True,
    help="Per node, MB.",
)
@click.option(
    "--gres",
    metavar="GRES",
    default="",
    help="Of every node, instead of --gpus, e.g. gpu:a100:2,gpu:1g.10gb:7.",
)
@click.option(
    "--gpu-cores",
    type=click.Choice(["all", "own"]),
    help="Bind GPUs to all CPUs of their node, or each to its part of them.",
)
@click.option(
    "--over-subscribe",
    metavar="WORD",
    default="NO",
    show_default=True,
    help="OverSubscribe of the ordinary partition.",
)
@click.option(
    "--exclusive-user",
    is_flag=True,
    help="Nodes of the ordinary partition have jobs of one user only.",
)
@click.option(
    "--pilot-cpus",
    type=click.IntRange(0),
    default=0,
    help="Most CPUs of a node for the preemptable partition (MaxCPUsPerNode).",
)
@click.option(
    "--memory-per-gpu",
    type=click.IntRange(0),
    default=0,
    help="Of jobs that name none, MB (DefMemPerGPU).",
)
@click.option(
    "--system-cpus",
    metavar="LIST",
    default="",
    help="CPUs of each node for the system (CpuSpecList), e.g. 0,1.",
)
@click.option(
    "--restricted-cores",
    type=click.IntRange(0),
    default=0,
    help="Cores per GPU for jobs with a GPU only (RestrictedCoresPerGPU, 24.05).",
)
@click.option("--bf-interval", type=click.IntRange(1), default=30, show_default=True)
@click.option("--scheduler-parameters", default="", help="Added to bf_interval.")
@click.option("--kill-wait", type=click.IntRange(0), default=5, show_default=True)
@click.option("--accounting", is_flag=True, help="With slurmdbd, so that sacct works.")
@click.option(
    "--preemptable",
    "pilot_partition",
    metavar="NAME",
    default="bf",
    show_default=True,
    help="Name of the preemptable partition, e.g. scavenge.",
)
@click.option(
    "--preempt-mode",
    type=click.Choice(["CANCEL", "REQUEUE"]),
    default="CANCEL",
    show_default=True,
    help="Of that partition.",
)
@click.option(
    "--grace-time", type=click.IntRange(0), default=0, show_default=True, help="Of it, s."
)
@click.option(
    "--slurm",
    "prefix",
    metavar="PREFIX",
    envvar=PREFIX_VARIABLE,
    default="",
    help=f"Where another Slurm than the machine's is installed.  [env: {PREFIX_VARIABLE}]",
)
@_reported
def up(
    directory: Path,
    n_nodes: int,
    gpus: int,
    cpus: int,
    memory_mb: int,
    gres: str,
    gpu_cores: Literal["all", "own"] | None,
    over_subscribe: str,
    pilot_cpus: int,
    memory_per_gpu: int,
    system_cpus: str,
    restricted_cores: int,
    bf_interval: int,
    scheduler_parameters: str,
    kill_wait: int,
    pilot_partition: str,
    preempt_mode: Literal["CANCEL", "REQUEUE"],
    grace_time: int,
    prefix: str,
    *,
    accounting: bool,
    exclusive_user: bool,
) -> None:
    """Start a cluster, and print the line that points Slurm's commands to it."""
    node_types: tuple[tuple[str, str], ...] = ()
    if gres:
        node_types = ((gres, ""),) * n_nodes
    cluster = SlurmTestCluster(
        ClusterConfig(
            directory=directory.resolve(),
            n_nodes=n_nodes,
            gpus_per_node=gpus,
            cpus_per_node=cpus,
            memory_mb=memory_mb,
            node_types=node_types,
            gpu_cores=gpu_cores or "",
            sharing=Sharing(
                over_subscribe=over_subscribe,
                is_user_exclusive=exclusive_user,
                pilot_cpus_per_node=pilot_cpus,
                memory_per_gpu_mb=memory_per_gpu,
                system_cpus=system_cpus,
                restricted_cores_per_gpu=restricted_cores,
            ),
            bf_interval_s=bf_interval,
            scheduler_parameters=scheduler_parameters,
            kill_wait_s=kill_wait,
            accounting=accounting,
            pilot_partition=pilot_partition,
            preempt_mode=preempt_mode,
            grace_time_s=grace_time,
            prefix=prefix,
        )
    )
    cluster.up()
    click.echo(f"{n_nodes} nodes idle after {cluster.up_s:.1f} s in {directory}", err=True)
    click.echo(f"export SLURM_CONF={cluster.env['SLURM_CONF']}")
    if prefix:
        click.echo(f"export PATH={prefix}/bin:$PATH")


@main.command()
@_directory
@_reported
def down(directory: Path) -> None:
    """Cancel all jobs and end all processes of the cluster."""
    cluster = SlurmTestCluster.load(directory.resolve())
    cluster.down()
    click.echo(f"down after {cluster.down_s:.1f} s", err=True)


@main.command()
@_directory
@_reported
def status(directory: Path) -> None:
    """Show nodes and queue, as sinfo and squeue do."""
    cluster = SlurmTestCluster.load(directory.resolve())
    for command in (("sinfo",), ("squeue", "-a")):
        answer = cluster.command(*command)
        if not answer.is_ok:
            click.echo(f"The controller does not answer: {why_failed(answer)}", err=True)
            sys.exit(ExitCode.NOT_FOUND)
        click.echo(answer.stdout, nl=False)


@main.command()
@_directory
@click.option("--nodes", "n_nodes", type=click.IntRange(1), default=1, show_default=True)
@click.option("--duration", "duration_s", type=float, default=60.0, show_default=True, help="s")
@click.option("--limit", "limit_s", type=float, help="s; rounded up to minutes")
@click.option("--kind", type=click.Choice(["sbatch", "srun"]), default="sbatch", show_default=True)
@click.option(
    "--script",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Run this JSON workload to its end instead and print its record.",
)
@_reported
def submit(
    directory: Path,
    n_nodes: int,
    duration_s: float,
    limit_s: float | None,
    kind: Literal["sbatch", "srun"],
    script: Path | None,
) -> None:
    """Submit one ordinary job and print its id, or run a scripted workload."""
    cluster = SlurmTestCluster.load(directory.resolve())
    if script is None:
        job_id = cluster.submit(n_nodes=n_nodes, duration_s=duration_s, limit_s=limit_s, kind=kind)
        click.echo(job_id)
        return
    items = load_workload(script)
    with WorkloadRun(cluster, items) as run:
        # Every job may have to wait for every other one, and for a cycle.
        patience_s = sum(i.at_s + i.duration_s + cluster.config.bf_interval_s + 10 for i in items)
        is_done = run.wait(patience_s)
    click.echo(json.dumps([record.as_json() for record in run.records()], indent=1))
    sys.exit(ExitCode.OK if is_done else ExitCode.TIMEOUT)
